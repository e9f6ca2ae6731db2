#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/link.h"
#include "comm/rendezvous/member.h"
#include "trireme/core/deadline.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

struct MachineMeetingOptions {
  Identity identity;
  std::string name;  // of the meeting point; the same for all ranks of a job, different for others
  Milliseconds timeout{0};
  // Called now and then: looks for at most that long for why nobody will come, and throws it.
  std::function<void(Milliseconds patience)> look = [](Milliseconds) {};
};

// The ranks of one machine that have found and admitted each other: rank 0 knows all of them, the
// others know rank 0.
struct MachineMeeting {
  Member self;
  Deadline deadline{Milliseconds(0)};  // of the meeting; what follows it has as much
  // To every rank on rank 0 (its own is null), to rank 0 elsewhere.
  std::vector<std::unique_ptr<Link>> links;
  // On rank 0, by rank:
  std::vector<Member> members;
  std::vector<FileDescriptor> lives;  // a pidfd: readable when its process has ended
};

// Brings the ranks of a job on this machine together. Rank 0 listens on a Unix socket, the others
// come to it. Blocking, collective. Throws CommError (kRendezvousTimeout with the missing ranks,
// kRefused with the reason).
MachineMeeting meet(const MachineMeetingOptions& options);

// How long a rank that has lost another looks for what was behind it.
inline constexpr Milliseconds kTimeToFindTheCause{1000};

}  // namespace trireme::detail
