#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/member.h"
#include "comm/rendezvous/tcp_link.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

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

// That rank 0 talks to at once before it knows whether they belong to the job; more wait in the
// kernel's queue.
inline constexpr std::size_t kMostStrangers = 64;

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
  // Of rank 0 to all others: a word of everyone's, or that a rank is lost, which all then name.
  void tell_all(const std::string& message);
  std::string hear();
  [[noreturn]] void lost(int rank);
  [[noreturn]] void broken(int rank, const std::string& what) const;

  int rank_;
  int size_;
  Deadline deadline_;
  std::vector<TcpLink> links_;   // rank 0: by rank; elsewhere one, to rank 0
  std::vector<Member> members_;  // by rank
};

}  // namespace trireme::detail
