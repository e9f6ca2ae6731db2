#include "launch/epochs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <signal.h>
#include <sys/wait.h>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// Worlds may end because a rank was slow for once, not again and again.
constexpr int kMostVainEpochs = 3;
// Who has lost another says so sooner than the launcher of that one, now and then. Everybody is to
// hear who it was.
constexpr Milliseconds kTimeForCause{100};

// Trying again would find the same mistake.
bool means_wrong_usage(const JobEvent& failure) {
  return WIFEXITED(failure.number) && WEXITSTATUS(failure.number) == kExitUsage;
}

// It ends because of another: by itself, or because nobody in it catches an error.
bool blames_another(const JobEvent& failure) {
  const bool by_itself = WIFEXITED(failure.number) || WTERMSIG(failure.number) == SIGABRT;
  return by_itself && failure.blamed >= 0 && failure.blamed != failure.rank;
}

}  // namespace

Epochs::Epochs(const ElasticOptions& options, Milliseconds wait, Hands hands)
    : options_(options), wait_(wait), hands_(std::move(hands)), restarts_left_(options.restarts) {}

void Epochs::add(Machine machine, int ranks) {
  machine.status.members = ranks;
  machine.status.ready = ranks == 0;
  world_size_ += ranks;
  machines_.push_back(std::move(machine));
}

void Epochs::take_over(std::int64_t epoch, Milliseconds patience) {
  epoch_ = epoch - 1;
  forming_ = lost_ = true;
  gathering_.emplace(patience);
  counter_.take_over();
  for (Machine& machine : machines_) {
    machine.status.epoch = epoch_;
  }
}

std::string Epochs::name_of(int machine) const {
  const std::string& name = machines_[index(machine)].name;
  return name.empty() ? "" : name + ": ";
}

int Epochs::members() const {
  return std::accumulate(machines_.begin(), machines_.end(), 0, [](int sum, const Machine& each) {
    return sum + each.status.members;
  });
}

int Epochs::capacity() const {
  return std::accumulate(machines_.begin(), machines_.end(), 0, [](int sum, const Machine& each) {
    return sum + (each.present ? each.capacity : 0);
  });
}

bool Epochs::any(bool MachineStatus::*flag) const {
  return std::any_of(machines_.begin(), machines_.end(), [flag](const Machine& machine) {
    return machine.status.*flag;
  });
}

bool Epochs::any(bool Machine::*flag) const {
  return std::any_of(
      machines_.begin(), machines_.end(), [flag](const Machine& machine) { return machine.*flag; });
}

int Epochs::started_again() const {
  return std::accumulate(machines_.begin(), machines_.end(), 0, [](int sum, const Machine& each) {
    return sum + each.started_again;
  });
}

bool Epochs::is_ready() const {
  return std::all_of(machines_.begin(), machines_.end(), [](const Machine& machine) {
    return machine.status.ready;
  });
}

void Epochs::take(int machine, const MachineStatus& status) {
  Machine& where = machines_[index(machine)];
  counter_.reach(status.reached);
  if (!where.present || status.epoch != epoch_) {
    return;  // of an epoch that is over
  }
  if (status.kept != where.status.kept) {
    vain_epochs_ = 0;
  }
  where.status = status;
  finished_ |= status.finished;
}

bool Epochs::take(int machine, const std::vector<JobEvent>& failures) {
  if (std::any_of(failures.begin(), failures.end(), means_wrong_usage)) {
    return false;
  }
  // Causes first: others end because of them.
  std::vector<JobEvent> sorted = failures;
  std::stable_partition(sorted.begin(), sorted.end(), [](const JobEvent& failure) {
    return !blames_another(failure);
  });
  return std::all_of(sorted.begin(), sorted.end(), [&](const JobEvent& failure) {
    const bool follows = blames_another(failure) || failure.stalled;
    if (!follows || losses_ > 0) {
      return outlives({machine, failure}, follows);
    }
    if (failure.stalled) {
      return outlives({machine, failure}, false);
    }
    // Whom it blames may be lost on a machine that has not said so yet.
    held_.push_back({machine, failure});
    end_epoch(
        true,
        concat("{}rank {} {}", {name_of(machine), failure.rank, how_it_ended(failure.number)}));
    return true;
  });
}

// Note [what a job outlives]
// A rank that was killed: the others go on without it, or with a new one in its place. A rank that
// ended itself had a reason, which the others may have just as well: only a restart that was asked
// for tries again. Programs that do not ask for the next epoch end when they lose a rank; they are
// started again, since it is not they who were lost; so are those that do not notice, and are ended
// by their launcher. When a rank has come to its end, the job has:
// ranks end together, so one that is killed after that takes nothing along. A machine that is lost
// takes its ranks along; it may come back.
bool Epochs::outlives(const Failed& failed, bool follows) {
  const JobEvent& failure = failed.failure;
  Machine& machine = machines_[index(failed.machine)];
  const bool killed = WIFSIGNALED(failure.number) && !follows;
  const int left = members() + started_again();
  const std::string what = concat("{}rank {} of {} (pid {}) {}",
                                  {name_of(failed.machine),
                                   failure.rank,
                                   world_size_,
                                   failure.pid,
                                   how_it_ended(failure.number)});
  if (killed && finished_) {
    hands_.say(concat(what, " when others had finished: nothing is lost"));
    return true;
  }
  if (machine.leaves) {
    hands_.say(what);  // it would have had no rank in the next epoch
    counter_.leave(follows ? 1 : 0);
  } else if (follows) {
    ++machine.started_again;
    ++machine.follows;
  } else if (restarts_left_ > 0) {
    --restarts_left_;
    ++machine.started_again;
    hands_.say(
        concat("{}: starting it again ({} left)", {what, counted(restarts_left_, "restart")}));
  } else if (killed && left >= (ends_ ? 1 : options_.least) && left > 0) {
    hands_.say(concat("{}: going on with {}", {what, counted(left, "rank")}));
  } else {
    hands_.say(killed ? concat(too_few(left), ": the job ends")
                      : "no restart is left for a rank that ends by itself: the job ends");
    return false;
  }
  losses_ += follows ? 0 : 1;
  counter_.lose(follows ? 0 : 1);
  end_epoch(true, what);
  return true;
}

void Epochs::machine_lost(int machine, const std::string& why) {
  Machine& where = machines_[index(machine)];
  if (!where.present) {
    return;
  }
  const int gone = where.status.members + where.started_again;
  const int lost = where.status.members + where.follows;
  const bool left = where.leaves;
  where.present = where.is_new = where.leaves = false;
  where.started_again = where.follows = 0;
  where.status = {};
  const std::string what = concat(
      where.name, " ", left ? std::string(gone == 0 ? "has left" : "has ended its ranks") : why);
  if (gone == 0) {
    hands_.say(left ? what : concat(what, ": it had no ranks"));
    return;
  }
  hands_.say(finished_ ? concat(what, " when others had finished: nothing is lost")
                       : concat("{}: going on without its {}", {what, counted(gone, "rank")}));
  if (!finished_) {
    ++losses_;
    counter_.lose(lost);
    end_epoch(true, what);
  }
}

void Epochs::machine_came(int machine, Machine now) {
  hands_.say(concat("{} has come, with {}: it takes part after the step at hand",
                    {now.name, counted(now.capacity, "rank")}));
  who_comes_ = concat(now.name, " joins the job");
  now.is_new = true;
  now.status = {.epoch = epoch_};
  machines_[index(machine)] = std::move(now);
}

void Epochs::machine_leaves(int machine) {
  Machine& where = machines_[index(machine)];
  if (std::exchange(where.leaves, true)) {
    return;
  }
  hands_.say(concat(where.name, " leaves the job"));
  if (where.status.members + where.started_again == 0) {
    return;
  }
  if (!any(&MachineStatus::keeps)) {
    ++losses_;  // nobody would hear that the step at hand is the last
  }
  end_epoch(!any(&MachineStatus::keeps), concat(where.name, " leaves the job"));
}

void Epochs::end_epoch(bool lost, const std::string& why) {
  if (!std::exchange(forming_, true) || (lost && !lost_)) {
    why_ = why;
    lost_ |= lost;
    hands_.end({epoch_, lost, why});
  }
}

std::string Epochs::turn() {
  if (any(&MachineStatus::asks) && !lost_) {  // whatever has ended the epoch has begun to
    if (!forming_ && !unexplained_) {
      unexplained_.emplace(kTimeForCause);
    }
    if (forming_ || unexplained_->passed()) {
      end_epoch(true, forming_ ? std::string(why_) : "a rank has lost another");
    }
  }
  const bool newcomers = any(&Machine::is_new);
  if (newcomers && !forming_ && !ends_ && !finished_ && any(&MachineStatus::keeps) &&
      members() < options_.most) {
    end_epoch(false, who_comes_);
  }
  const bool all_here = std::all_of(
      machines_.begin(), machines_.end(), [](const Machine& machine) { return machine.present; });
  if (!forming_ || !is_ready() || (gathering_ && !gathering_->passed() && !all_here)) {
    return {};
  }
  gathering_.reset();
  for (const Failed& failed : std::exchange(held_, {})) {
    if (!outlives(failed, losses_ > 0)) {
      return concat("rank {} {}, and nobody else is lost",
                    {failed.failure.rank, how_it_ended(failed.failure.number)});
    }
  }
  if (const std::string why = why_too_few(); !why.empty()) {
    return waits_for_machines(why) ? "" : why;
  }
  const bool meant = losses_ > 0 || wanted_ || newcomers || any(&Machine::leaves);
  vain_epochs_ = meant ? 0 : vain_epochs_ + 1;
  if (vain_epochs_ > kMostVainEpochs) {
    return "the ranks lose each other again and again, although none of them has ended: look at "
           "their logs, and whether a wait of theirs takes longer than --timeout";
  }
  try {
    begin();
  } catch (const ConfigError& error) {
    return concat("the job cannot continue after the loss of ranks: ", error.what());
  }
  return {};
}

bool Epochs::waits_for_machines(const std::string& why) {
  const bool may_come = std::any_of(machines_.begin(), machines_.end(), [](const Machine& each) {
    return !each.present || each.leaves;
  });
  if (!may_come || ends_) {
    return false;
  }
  if (!waiting_) {
    waiting_.emplace(wait_);
    const double seconds = std::chrono::duration<double>(wait_).count();
    hands_.say(concat("{}; waiting up to {} s for a machine to come back", {why, seconds}));
  }
  return !waiting_->passed();
}

std::vector<int> Epochs::ranks_of_next() const {
  std::vector<int> ranks;
  ranks.reserve(machines_.size());
  for (const Machine& machine : machines_) {
    const bool counts = machine.present && !machine.leaves;
    const int now = machine.status.members + machine.started_again;
    ranks.push_back(!counts ? 0 : machine.is_new && !ends_ && !finished_ ? machine.capacity : now);
  }
  const int total = std::accumulate(ranks.begin(), ranks.end(), 0);
  const int wanted = std::min(total > 0 && wanted_ ? *wanted_ : total, options_.most);
  const auto room = [&](std::size_t i) {
    const Machine& machine = machines_[i];
    return machine.present && !machine.leaves ? machine.capacity - ranks[i] : 0;
  };
  for (int left = wanted - total; left != 0;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      // What comes goes where there is most room, what leaves from where there are most.
      if (left > 0 ? room(i) > room(best) : ranks[i] >= ranks[best]) {
        best = i;
      }
    }
    if (left > 0 && room(best) <= 0) {
      break;  // a machine was lost meanwhile
    }
    ranks[best] += left > 0 ? 1 : -1;
    left += left > 0 ? -1 : 1;
  }
  return ranks;
}

void Epochs::end_in_good_order() {
  ends_ = true;
  restarts_left_ = 0;
  for (Machine& machine : machines_) {
    machine.started_again = 0;
    counter_.leave(std::exchange(machine.follows, 0));
  }
  wanted_.reset();
}

// Where the others have come to their ends, one that is started again would be alone.
std::string Epochs::why_too_few() const {
  const std::vector<int> ranks = ranks_of_next();
  const int next = std::accumulate(ranks.begin(), ranks.end(), 0);
  const bool complete = finished_ && started_again() == 0;
  const bool nobody = next == 0 && machines_.size() == 1;
  if (nobody || next >= options_.least || ends_ || complete) {
    return {};
  }
  return concat(too_few(next), ": the others have ended");
}

std::string Epochs::too_few(int left) const {
  const bool fixed = options_.least == options_.most;
  const char* who = fixed ? "the job needs " : "--elastic wants ";
  const char* more = fixed && restarts_left_ == 0 ? ", and no restart is left (--restart)" : "";
  return concat(counted(left, "rank"), " left, where ", who, options_.least, more);
}

void Epochs::begin() {
  EpochOrder order{.epoch = epoch_ + 1, .ranks = ranks_of_next()};
  std::vector<RankCounter::Part> parts;
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    order.starts.push_back(std::max(0, order.ranks[i] - machines_[i].status.members));
    parts.push_back({machines_[i].status.members, machines_[i].follows});
    if (order.ranks[i] > 0 && order.rendezvous.empty()) {
      order.rendezvous = machines_[i].listener;  // of the machine that has rank 0
    }
  }
  wanted_.reset();
  waiting_.reset();
  losses_ = 0;
  forming_ = lost_ = false;
  unexplained_.reset();
  if (order.world_size() == 0) {
    return;  // all have come to their end
  }
  counter_.count(parts, order);
  finished_ = false;
  epoch_ = order.epoch;
  world_size_ = order.world_size();
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    Machine& machine = machines_[i];
    machine.started_again = machine.follows = 0;
    machine.is_new = machine.is_new && order.ranks[i] == 0;
    machine.status = {.epoch = epoch_,
                      .members = order.ranks[i],
                      .ready = order.ranks[i] == 0,
                      .keeps = machine.status.keeps,
                      .kept = machine.status.kept};
  }
  hands_.begin(order);
}

}  // namespace trireme::detail
