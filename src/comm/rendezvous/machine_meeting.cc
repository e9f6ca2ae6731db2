#include "comm/rendezvous/machine_meeting.h"

#include <cerrno>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

#include "comm/rendezvous/rank_meeting.h"
#include "comm/rendezvous/unix_link.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kUnixRetryPause{5};

// A handle of this process that tells its holder when the process has ended.
FileDescriptor open_own_life() {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  TRIREME_CHECK(fd >= 0,
                "pidfd_open failed: ",
                errno_text(errno),
                "; Trireme needs Linux 5.3 or newer to notice a peer that dies");
  return FileDescriptor(fd);
}

std::unique_ptr<UnixDoor> open_door(const MachineMeetingOptions& options,
                                    const Deadline& deadline) {
  const std::string own = concat("pid ", getpid());
  const Deadline patience = patience_with_earlier(options.identity);
  for (;;) {
    if (auto door = UnixDoor::open(options.name)) {
      return door;
    }
    const auto other = connect_to(options.name);
    // The door of an earlier meeting of this very process is closed as soon as a process that it
    // has forked in between, for a program of its own, lets go of it.
    if (!deadline.passed() && (!other || other->peer() == own || !patience.passed())) {
      std::this_thread::sleep_for(kUnixRetryPause);
      continue;
    }
    if (const auto stranger = other ? other->objection() : std::nullopt) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat("rank 0 ({}) cannot open the rendezvous of this job: {} has taken the "
                             "name @{}, and {}: give the job another name (TRIREME_JOB)",
                             {own, other->peer(), options.name, *stranger}));
    }
    throw CommError(CommError::Reason::kRefused,
                    0,
                    concat("rank 0 ({}) cannot open the rendezvous of this job: {} is already rank "
                           "0 of it; start rank 0 once, end the one that is left over, or give the "
                           "new job another name (TRIREME_JOB)",
                           {own, other ? other->peer() : "another process"}));
  }
}

MachineMeeting host_machine(const MachineMeetingOptions& options) {
  MachineMeeting meeting;
  meeting.self = make_member(options.identity);
  meeting.deadline = Deadline(options.timeout);
  meeting.members.push_back(meeting.self);
  meeting.lives.push_back(open_own_life());
  meeting.links.emplace_back();
  if (options.identity.size == 1) {
    return meeting;
  }
  const auto door = open_door(options, meeting.deadline);
  RankHost policy({.self = meeting.self,
                   .needs_life = true,
                   .reached = "met",
                   .hint = "check that every rank was started with the same job (TRIREME_JOB)",
                   .look = options.look});
  Gathering gathering = host_meeting(*door,
                                     policy,
                                     pass_of(options.identity, options.name),
                                     options.identity.size,
                                     meeting.deadline);
  for (std::size_t rank = 1; rank < gathering.guests.size(); ++rank) {
    Guest& guest = gathering.guests[rank];
    meeting.members.push_back(*unpack_member(guest.said.bytes));
    meeting.lives.push_back(std::move(guest.said.fds.front()));
    meeting.links.push_back(std::move(guest.link));
  }
  return meeting;
}

class MachineJoiner final : public RankJoiner {
 public:
  MachineJoiner(const MachineMeetingOptions& options, const MachineMeeting& meeting)
      : RankJoiner(meeting.self, meeting.deadline), options_(options) {}

  std::string place() const override { return concat("the Unix socket @", options_.name, whose_); }
  std::unique_ptr<Link> knock(std::string* /*why*/) override {
    auto link = connect_to(options_.name);
    whose_ = link ? concat(" (", link->peer(), ")") : "";
    return link;
  }
  Message introduction() const override {
    Message message = RankJoiner::introduction();
    message.fds.push_back(open_own_life());
    return message;
  }
  void look(const std::string& /*trouble*/) override { options_.look(Milliseconds(0)); }
  [[noreturn]] void timed_out(const std::string& trouble) override {
    options_.look(kTimeToFindTheCause);
    RankJoiner::timed_out(trouble);
  }

 protected:
  std::string hint() const override {
    return "check that rank 0 is running on this machine with the same job (TRIREME_JOB)";
  }

 private:
  const MachineMeetingOptions& options_;
  std::string whose_;
};

}  // namespace

MachineMeeting meet(const MachineMeetingOptions& options) {
  if (options.identity.rank == 0) {
    return host_machine(options);
  }
  MachineMeeting meeting;
  meeting.self = make_member(options.identity);
  meeting.deadline = Deadline(options.timeout);
  MachineJoiner policy(options, meeting);
  meeting.links.push_back(join_meeting(
      policy, pass_of(options.identity, options.name), kUnixRetryPause, meeting.deadline));
  return meeting;
}

}  // namespace trireme::detail
