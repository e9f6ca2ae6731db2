#pragma once

#include <vector>

#include "comm/rendezvous/member.h"
#include "comm/transport/transport.h"

namespace trireme::detail {

struct TransportMeetingOptions {
  Identity identity;
  int local_rank = 0;
  int local_size = 1;
  Milliseconds timeout{0};
};

// NetMeeting's work for ranks that can already send each other messages, mpirun's for one: rank 0
// admits the others by the same conversation. Collective; throws the same.
std::vector<Member> meet_through(Transport& transport, const TransportMeetingOptions& options);

}  // namespace trireme::detail
