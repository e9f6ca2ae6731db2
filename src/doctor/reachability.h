#pragma once

#include <string>

#include "comm/rendezvous/net_socket.h"
#include "doctor/finding.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// How an attempt to connect ended.
enum class Reach {
  kConnected,
  kNotResolved,  // the name has no address
  kRefused,      // the machine is there, nobody listens
  kTimedOut,     // no answer at all
  kNoRoute,      // the network says that it cannot be reached
  kOther,
};

struct Attempt {
  Reach reach = Reach::kOther;
  std::string reason;  // the system's words
};

// One TCP connection, closed at once.
Attempt try_connect(const MeetingPlace& place, Milliseconds limit = Milliseconds(3000));

// Tries again for as long as nobody listens yet: machine 0 may be started last.
Attempt wait_for_listener(const MeetingPlace& place, const Deadline& deadline);

Finding judge_attempt(const MeetingPlace& place, const Attempt& attempt);

}  // namespace trireme::detail
