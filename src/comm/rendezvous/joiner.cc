#include <thread>

#include <unistd.h>

#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/machine_meeting.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kRetryPause{5};

class Joiner {
 public:
  explicit Joiner(const MachineMeetingOptions& options)
      : options_(options), deadline_(options.timeout), hello_(make_hello(options.identity)) {}

  MachineMeeting run() {
    MachineMeeting meeting;
    meeting.self = hello_;
    meeting.deadline = deadline_;
    meeting.links.push_back(find_rank_0());
    be_admitted(meeting.links.front());
    return meeting;
  }

 private:
  [[noreturn]] void give_up(const std::string& what) const {
    options_.look(kTimeToFindTheCause);
    if (deadline_.passed()) {
      throw CommError(CommError::Reason::kRendezvousTimeout,
                      0,
                      concat("rendezvous timed out after ",
                             deadline_.elapsed_seconds(),
                             " s: ",
                             name_of(hello_),
                             " ",
                             what));
    }
    throw CommError(CommError::Reason::kPeerDied, 0, concat(name_of(hello_), " ", what));
  }

  UnixLink find_rank_0() const {
    while (!deadline_.passed()) {
      if (auto link = connect_to(options_.name)) {
        return std::move(*link);
      }
      options_.look(Milliseconds(0));
      std::this_thread::sleep_for(kRetryPause);
    }
    give_up(
        "found no rank 0 at the job's meeting point; check that rank 0 is running on this machine "
        "with the same job (TRIREME_JOB)");
  }

  void be_admitted(const UnixLink& link) const {
    if (link.peer().uid != geteuid()) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(name_of(hello_),
                             " found pid ",
                             link.peer().pid,
                             " of user ",
                             link.peer().uid,
                             " in place of rank 0, but belongs to user ",
                             geteuid(),
                             ": give the job another name (TRIREME_JOB)"));
    }
    const Greeting greeting = make_greeting(0, options_.name);
    Challenge challenge{};
    if (!link.send(&greeting, sizeof(greeting), {}, deadline_) ||
        !link.receive(&challenge, sizeof(challenge), nullptr, deadline_)) {
      give_up(concat("got no answer from rank 0 (pid ",
                     link.peer().pid,
                     "), which may speak another version of the rendezvous protocol"));
    }
    // Go on, even with a host that has not proven itself: it is of this user, and the refusal that
    // it sends back names both sides.
    const auto introduction = introduce(greeting, challenge, hello_, options_.identity.token);
    const FileDescriptor life = open_own_life();
    Verdict verdict{};
    if (!link.send(&introduction, sizeof(introduction), {life.get()}, deadline_) ||
        !link.receive(&verdict, sizeof(verdict), nullptr, deadline_)) {
      give_up(concat("lost rank 0 (pid ", link.peer().pid, ") while it was being admitted"));
    }
    if (verdict.admitted == 0) {
      throw CommError(CommError::Reason::kRefused, 0, refusal_text(verdict));
    }
    if (!challenge_is_genuine(challenge, greeting, options_.identity.token)) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(name_of(hello_),
                             " does not trust pid ",
                             link.peer().pid,
                             " as rank 0: it does not know the token of this job (TRIREME_TOKEN)"));
    }
  }

  const MachineMeetingOptions& options_;
  Deadline deadline_;
  Hello hello_;
};

}  // namespace

MachineMeeting join_machine(const MachineMeetingOptions& options) {
  return Joiner(options).run();
}

}  // namespace trireme::detail
