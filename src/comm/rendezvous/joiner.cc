#include <algorithm>
#include <iterator>
#include <thread>

#include <unistd.h>

#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/welcome.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kRetryPause{5};

class Joiner {
 public:
  explicit Joiner(const RendezvousOptions& options)
      : options_(options),
        deadline_(options.timeout),
        offer_(options.kernel_copy),
        hello_(make_hello(options.identity)) {}

  Membership run() {
    Channel channel = find_rank_0();
    be_admitted(channel);
    return be_welcomed(std::move(channel));
  }

 private:
  [[noreturn]] void give_up(const std::string& what) const {
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

  [[noreturn]] void blame_own_limit(const std::string& what) const {
    throw CommError(CommError::Reason::kAborted,
                    hello_.rank,
                    concat(name_of(hello_),
                           " has too few open files left for ",
                           what,
                           ": raise the limit (ulimit -n)"));
  }

  Channel find_rank_0() const {
    while (!deadline_.passed()) {
      if (auto channel = connect_to(options_.name)) {
        return std::move(*channel);
      }
      std::this_thread::sleep_for(kRetryPause);
    }
    give_up(
        "found no rank 0 at the job's meeting point; check that rank 0 is running on this machine "
        "with the same job (TRIREME_JOB)");
  }

  void be_admitted(const Channel& channel) const {
    if (channel.peer().uid != geteuid()) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(name_of(hello_),
                             " found pid ",
                             channel.peer().pid,
                             " of user ",
                             channel.peer().uid,
                             " in place of rank 0, but belongs to user ",
                             geteuid(),
                             ": give the job another name (TRIREME_JOB)"));
    }
    const Greeting greeting = make_greeting(0, options_.name);
    Challenge challenge{};
    if (!channel.send(&greeting, sizeof(greeting), {}, deadline_) ||
        !channel.receive(&challenge, sizeof(challenge), nullptr, deadline_)) {
      give_up(concat("got no answer from rank 0 (pid ",
                     channel.peer().pid,
                     "), which may speak another version of the rendezvous protocol"));
    }
    // Go on, even with a host that has not proven itself: it is of this user, and the refusal that
    // it sends back names both sides.
    const LocalHello said{hello_, offer_.probe()};
    const auto introduction = introduce(greeting, challenge, said, options_.identity.token);
    const FileDescriptor life = open_own_life();
    Verdict verdict{};
    if (!channel.send(&introduction, sizeof(introduction), {life.get()}, deadline_) ||
        !channel.receive(&verdict, sizeof(verdict), nullptr, deadline_)) {
      give_up(concat("lost rank 0 (pid ", channel.peer().pid, ") while it was being admitted"));
    }
    if (verdict.admitted == 0) {
      throw CommError(CommError::Reason::kRefused, 0, refusal_text(verdict));
    }
    if (!challenge_is_genuine(challenge, greeting, options_.identity.token)) {
      throw CommError(CommError::Reason::kRefused,
                      0,
                      concat(name_of(hello_),
                             " does not trust pid ",
                             channel.peer().pid,
                             " as rank 0: it does not know the token of this job (TRIREME_TOKEN)"));
    }
  }

  Membership be_welcomed(Channel channel) const {
    const int size = options_.identity.size;
    Membership membership;
    membership.rank = options_.identity.rank;
    membership.size = size;
    Welcome welcome{};
    std::vector<FileDescriptor> control;
    const auto lost = [&] {
      give_up(concat("was admitted, but the world was not completed by rank 0 (pid ",
                     channel.peer().pid,
                     ")"));
    };
    if (!channel.receive(&welcome, sizeof(welcome), &control, deadline_)) {
      lost();
    }
    if (welcome.ready == 0) {
      throw MemoryError(concat("rank 0: ", welcome.message));
    }
    if (control.empty()) {
      blame_own_limit("the control memory");
    }
    std::vector<MemoryProbe> probes(index(size));
    if (!channel.receive(probes.data(), probes.size() * sizeof(MemoryProbe), nullptr, deadline_)) {
      lost();
    }
    while (membership.lives.size() < index(size)) {
      std::uint32_t number = 0;
      std::vector<FileDescriptor> lives;
      if (!channel.receive(&number, sizeof(number), &lives, deadline_)) {
        lost();
      }
      if (lives.size() != number) {
        blame_own_limit("its peers' handles");
      }
      std::move(lives.begin(), lives.end(), std::back_inserter(membership.lives));
    }
    KernelCopyReport report = try_kernel_copy(probes, options_.identity.rank, options_.first_rank);
    if (!channel.send(&report, sizeof(report), {}, deadline_) ||
        !channel.receive(&report, sizeof(report), nullptr, deadline_)) {
      lost();
    }
    membership.kernel_copy = KernelCopy(probes, options_.identity.rank, report);
    for (const MemoryProbe& probe : probes) {
      membership.pids.push_back(probe.pid);
    }
    membership.first_rank = options_.first_rank;
    membership.processors = static_cast<int>(welcome.processors);
    membership.stage_bytes = welcome.stage_bytes;
    membership.control = std::move(control.front());
    membership.links.push_back(std::move(channel));
    return membership;
  }

  const RendezvousOptions& options_;
  Deadline deadline_;
  MemoryOffer offer_;
  Hello hello_;
};

}  // namespace

Membership join_world(const RendezvousOptions& options) {
  return Joiner(options).run();
}

}  // namespace trireme::detail
