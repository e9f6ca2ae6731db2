#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/net/transport.h"
#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/tcp_channel.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// A rank of a world over several machines, as the others know it.
struct Member {
  int rank = 0;
  int pid = 0;
  int node = 0;  // machines are numbered by their first rank
  int local_rank = 0;
  int local_size = 1;
  std::string host;     // the machine's name; for messages
  std::string kernel;   // the running kernel, which network namespaces of a host share
  std::string network;  // the network namespace
  std::array<std::uint64_t, 16> cpus{};  // that it may run on, a bit each (Hello::cpus)
};

struct NetMeetingOptions {
  Identity identity;
  int local_rank = 0;
  int local_size = 1;
  std::string job;
  int world = 0;      // which of the job's worlds
  std::string place;  // HOST:PORT of rank 0
  std::string where;  // what said so; for messages
  int listener = -1;  // rank 0: a descriptor that listens there already
  Milliseconds timeout{0};
};

// Where the ranks of several machines find and admit each other: rank 0 listens at a TCP port, the
// others come to it (the conversation of admission.h). Then small things can be exchanged through
// rank 0, until everyone knows enough to talk directly.
class NetMeeting {
 public:
  // Blocking, collective. Throws CommError (kRendezvousTimeout with the missing ranks, kRefused
  // with the reason) and ConfigError (a name that does not resolve, a port in use).
  explicit NetMeeting(const NetMeetingOptions& options);

  const std::vector<Member>& members() const { return members_; }
  std::vector<std::string> exchange(const std::string& mine);

 private:
  void host(const NetMeetingOptions& options);
  void join(const NetMeetingOptions& options);
  [[noreturn]] void broken(const std::string& what) const;

  int rank_;
  int size_;
  Deadline deadline_;
  std::vector<TcpChannel> links_;  // rank 0: by rank; elsewhere one, to rank 0
  std::vector<Member> members_;    // by rank
};

// The same for ranks that can already send each other messages, mpirun's for one: rank 0 admits the
// others by the same conversation.
std::vector<Member> meet_through(Transport& transport, const NetMeetingOptions& options);

}  // namespace trireme::detail
