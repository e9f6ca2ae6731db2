#include "comm/shm/membership.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "comm/rendezvous/fixed_text.h"
#include "comm/rendezvous/rank_meeting.h"
#include "comm/rendezvous/secrets.h"
#include "comm/shm/control.h"
#include "device/host/segment.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/machine.h"

// What ranks that have met tell each other:
//
//   rank 0 -> everyone  Welcome           with the control memory; or who is lost
//   everyone -> rank 0  MemoryProbe       where its memory can be tried
//   rank 0 -> everyone  every rank's probe, then the process handles, at most kHandlesPerMessage at
//                       a time
//   everyone -> rank 0  KernelCopyReport  whether it can read the others' memory
//   rank 0 -> everyone  KernelCopyReport  what holds for all

namespace trireme::detail {
namespace {

struct Welcome {
  std::uint64_t stage_bytes;
  std::uint32_t oversubscribed;
  std::uint32_t ready;  // 0: something failed after admission, `message` says what
  char world[40];
  char message[1024];
};

constexpr std::size_t kHandlesPerMessage = 128;

FileDescriptor make_control(int size, std::size_t stage_bytes, std::size_t lane_bytes) {
  const std::size_t bytes = Control::bytes(size, stage_bytes, lane_bytes);
  FileDescriptor memory = device::create_memory(bytes);
  device::reserve_pages(memory.get(), 0, bytes);
  constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
  const auto first_count = env_integer(kEnvFirstCount, 0, kMost).value_or(0);
  const auto mapping = device::Segment::map(memory, bytes);
  Control(mapping->data(), size, stage_bytes, lane_bytes)
      .begin_counting(static_cast<std::uint32_t>(first_count));
  return memory;
}

// Rank 0's side. A rank that is lost here is found by the first operation: its pidfd is with
// everyone else.
class Greeter {
 public:
  Greeter(const MembershipOptions& options, MachineMeeting& meeting)
      : options_(options), meeting_(meeting) {}

  void run(Membership& membership) {
    Welcome welcome{};
    welcome.stage_bytes = membership.stage_bytes = options_.stage_bytes;
    const int quota = cpu_quota();
    const int processors = processors_of(meeting_.members);
    membership.oversubscribed =
        options_.oversubscribed ||
        membership.size > (quota > 0 ? std::min(processors, quota) : processors);
    membership.world = fresh_name();
    copy_text(welcome.world, membership.world);
    welcome.oversubscribed = membership.oversubscribed ? 1 : 0;
    welcome.ready = 1;
    std::vector<int> control;
    try {
      membership.control =
          make_control(membership.size, options_.stage_bytes, membership.lane_bytes);
      control.push_back(membership.control.get());
    } catch (const MemoryError& error) {
      welcome.ready = 0;
      copy_text(welcome.message, error.what());
    }
    const std::string word =
        word_of_rank0({reinterpret_cast<const char*>(&welcome), sizeof(welcome)});
    tell_all(word.data(), word.size(), control);
    if (welcome.ready == 0) {
      throw MemoryError(concat("rank 0: ", text_of(welcome.message)));
    }
    const MemoryOffer offer(options_.kernel_copy);
    std::vector<MemoryProbe> probes{offer.probe()};
    for (std::size_t rank = 1; rank < meeting_.links.size(); ++rank) {
      MemoryProbe probe{};
      meeting_.links[rank]->receive(&probe, sizeof(probe), nullptr, meeting_.deadline);
      probe.pid = meeting_.members[rank].pid;
      probes.push_back(probe);
    }
    tell_all(probes.data(), probes.size() * sizeof(MemoryProbe), {});
    send_lives();
    membership.kernel_copy = agree_on_kernel_copy(probes);
    for (const Member& member : meeting_.members) {
      membership.pids.push_back(member.pid);
    }
    membership.lives = std::move(meeting_.lives);
  }

 private:
  void tell_all(const void* data, std::size_t bytes, const std::vector<int>& fds) const {
    for (std::size_t rank = 1; rank < meeting_.links.size(); ++rank) {
      meeting_.links[rank]->send(data, bytes, fds, meeting_.deadline);
    }
  }

  void send_lives() const {
    std::vector<int> lives;
    lives.reserve(meeting_.lives.size());
    for (const FileDescriptor& life : meeting_.lives) {
      lives.push_back(life.get());
    }
    for (std::size_t first = 0; first < lives.size(); first += kHandlesPerMessage) {
      const std::size_t count = std::min(kHandlesPerMessage, lives.size() - first);
      const auto number = static_cast<std::uint32_t>(count);
      const auto begin = lives.begin() + static_cast<std::ptrdiff_t>(first);
      tell_all(&number, sizeof(number), {begin, begin + static_cast<std::ptrdiff_t>(count)});
    }
  }

  // The first reason not to is everyone's.
  KernelCopy agree_on_kernel_copy(const std::vector<MemoryProbe>& probes) const {
    KernelCopyReport agreed = try_kernel_copy(probes, 0, options_.world_ranks);
    for (std::size_t rank = 1; rank < meeting_.links.size(); ++rank) {
      KernelCopyReport report{};
      if (!meeting_.links[rank]->receive(&report, sizeof(report), nullptr, meeting_.deadline)) {
        copy_text(report.why_not, concat("rank ", options_.world_ranks[rank], " was lost"));
      }
      if (agreed.why_not[0] == '\0') {
        agreed = report;
      }
    }
    tell_all(&agreed, sizeof(agreed), {});
    return {probes, 0, agreed};
  }

  const MembershipOptions& options_;
  MachineMeeting& meeting_;
};

// The side of the others.
class Newcomer {
 public:
  Newcomer(const MembershipOptions& options, const MachineMeeting& meeting)
      : options_(options), meeting_(meeting), link_(*meeting.links.front()) {}

  void run(Membership& membership) const {
    auto word = link_.receive(patience());
    const std::string said = word ? heard_from_rank0(word->bytes, meeting_.self.rank) : "";
    Welcome welcome{};
    if (said.size() != sizeof(welcome)) {
      lost();
    }
    std::memcpy(&welcome, said.data(), sizeof(welcome));
    std::vector<FileDescriptor>& control = word->fds;
    if (welcome.ready == 0) {
      throw MemoryError(concat("rank 0: ", text_of(welcome.message)));
    }
    if (control.empty()) {
      blame_own_limit("the control memory");
    }
    const MemoryOffer offer(options_.kernel_copy);
    send(&offer.probe(), sizeof(MemoryProbe));
    std::vector<MemoryProbe> probes(index(membership.size));
    receive(probes.data(), probes.size() * sizeof(MemoryProbe), nullptr);
    while (membership.lives.size() < probes.size()) {
      std::uint32_t number = 0;
      std::vector<FileDescriptor> lives;
      receive(&number, sizeof(number), &lives);
      if (lives.size() != number) {
        blame_own_limit("its peers' handles");
      }
      std::move(lives.begin(), lives.end(), std::back_inserter(membership.lives));
    }
    KernelCopyReport report = try_kernel_copy(probes, membership.rank, options_.world_ranks);
    send(&report, sizeof(report));
    receive(&report, sizeof(report), nullptr);
    membership.kernel_copy = KernelCopy(probes, membership.rank, report);
    for (const MemoryProbe& probe : probes) {
      membership.pids.push_back(probe.pid);
    }
    membership.oversubscribed = welcome.oversubscribed != 0;
    membership.stage_bytes = welcome.stage_bytes;
    membership.world = text_of(welcome.world);
    membership.control = std::move(control.front());
  }

 private:
  void send(const void* data, std::size_t bytes) const {
    if (!link_.send(data, bytes, {}, meeting_.deadline)) {
      lost();
    }
  }
  Deadline patience() const { return Deadline(meeting_.deadline.left() + kGraceForRank0); }
  void receive(void* data, std::size_t bytes, std::vector<FileDescriptor>* fds) const {
    if (!link_.receive(data, bytes, fds, patience())) {
      lost();
    }
  }
  [[noreturn]] void lost() const {
    options_.meeting.look(kTimeToFindTheCause);
    const std::string what = concat(meeting_.self.full_name(),
                                    " was admitted, but the world was not completed by rank 0");
    if (meeting_.deadline.passed()) {
      throw CommError(
          CommError::Reason::kRendezvousTimeout,
          0,
          concat("rendezvous timed out after ", meeting_.deadline.elapsed_seconds(), " s: ", what));
    }
    throw CommError(CommError::Reason::kPeerDied, 0, what);
  }
  [[noreturn]] void blame_own_limit(const std::string& what) const {
    throw CommError(CommError::Reason::kAborted,
                    meeting_.self.rank,
                    concat("{} has too few open files left for {}: raise the limit (ulimit -n)",
                           {meeting_.self.full_name(), what}));
  }

  const MembershipOptions& options_;
  const MachineMeeting& meeting_;
  Link& link_;
};

}  // namespace

Membership become_members(const MembershipOptions& options) {
  MachineMeeting meeting = meet(options.meeting);
  Membership membership;
  membership.rank = options.meeting.identity.rank;
  membership.size = options.meeting.identity.size;
  membership.world_ranks = options.world_ranks;
  membership.sum_group = options.sum_group;
  membership.lane_bytes = options.lanes ? lane_bytes_for(membership.size) : 0;
  if (membership.rank == 0) {
    Greeter(options, meeting).run(membership);
  } else {
    Newcomer(options, meeting).run(membership);
  }
  membership.links = std::move(meeting.links);
  return membership;
}

}  // namespace trireme::detail
