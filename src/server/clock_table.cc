#include "server/clock_table.h"

#include <algorithm>
#include <limits>

#include "trireme/core/error.h"

namespace trireme::detail {

ClockTable::ClockTable(int workers, std::int64_t bound, Order order)
    : bound_(bound), order_(order), workers_(static_cast<std::size_t>(workers)) {}

void ClockTable::begin_at(std::int64_t clock, std::int64_t first) {
  for (Worker& worker : workers_) {
    worker = {.came = clock, .applied = clock, .answered = clock, .left = worker.left};
  }
  arrivals_.clear();
  applied_ = clock;
  first_ = first;
}

void ClockTable::follow(std::vector<Act> acts) {
  for (const Act& act : acts) {
    TRIREME_CHECK(act.worker >= 0 && act.worker < workers(),
                  "replay: the record names rank {}, found {} ranks that compute: it is of another "
                  "run",
                  {act.worker, workers()});
  }
  script_.emplace(acts.begin(), acts.end());
}

void ClockTable::came(int worker) {
  ++workers_[index_of(worker)].came;
  arrivals_.push_back(worker);
}

void ClockTable::leaves(int worker) {
  workers_[index_of(worker)].left = true;
  if (script_) {
    // A replay that is interrupted: nobody waits for what this one does not do any more.
    std::erase_if(*script_, [&](const Act& act) {
      return act.worker == worker && act.clock >= workers_[index_of(worker)].came;
    });
  }
}

std::optional<ClockTable::Act> ClockTable::next() {
  if (script_) {
    return followed();
  }
  // Updates first: an answer is then as new as it can be, and whoever has an answer from every
  // owner knows that its gradients are in the weights, or wait for others only.
  const auto apply = next_apply();
  return apply ? apply : next_answer();
}

std::optional<ClockTable::Act> ClockTable::next_apply() {
  if (order_ == Order::kArrival) {
    if (arrivals_.empty()) {
      return std::nullopt;
    }
    const int worker = arrivals_.front();
    arrivals_.pop_front();
    return Act{Act::Kind::kApply, worker, workers_[index_of(worker)].applied++};
  }
  bool any = false;
  for (const Worker& worker : workers_) {
    if (worker.came <= applied_ && !worker.left) {
      return std::nullopt;
    }
    any |= worker.came > applied_;
  }
  return any ? std::optional(Act{Act::Kind::kApply, -1, applied_++}) : std::nullopt;
}

bool ClockTable::may_answer(const Worker& worker) const {
  if (order_ == Order::kClock) {
    return worker.came > worker.answered && version_for(worker.answered + 1) <= applied_;
  }
  return worker.applied > worker.answered &&
         (bound_ == Stale::kNoBound || std::ranges::all_of(workers_, [&](const Worker& other) {
            return other.left || other.applied >= worker.answered + 1 - bound_;
          }));
}

std::optional<ClockTable::Act> ClockTable::next_answer() {
  for (int worker = 0; worker < workers(); ++worker) {
    Worker& its = workers_[index_of(worker)];
    if (may_answer(its)) {
      return Act{Act::Kind::kAnswer, worker, its.answered++};
    }
  }
  return std::nullopt;
}

std::optional<ClockTable::Act> ClockTable::followed() {
  if (script_->empty()) {
    TRIREME_CHECK(arrivals_.empty(),
                  "replay: the record ends before step {} of rank {}: this run has more steps than "
                  "the one that is replayed",
                  {workers_[index_of(arrivals_.front())].came, arrivals_.front()});
    return std::nullopt;
  }
  const Act act = script_->front();
  Worker& worker = workers_[index_of(act.worker)];
  std::int64_t& done = act.kind == Act::Kind::kApply ? worker.applied : worker.answered;
  const std::int64_t ready = act.kind == Act::Kind::kApply ? worker.came : worker.applied;
  TRIREME_CHECK(done == act.clock,
                "replay: the record has step {} of rank {} where step {} comes next: it is of "
                "another run",
                {act.clock + 1, act.worker, done + 1});
  if (ready == done) {
    return std::nullopt;  // it has not come yet
  }
  script_->pop_front();
  ++done;
  if (act.kind == Act::Kind::kApply) {
    arrivals_.erase(std::ranges::find(arrivals_, act.worker));
  }
  return act;
}

std::int64_t ClockTable::version_for(std::int64_t clock) const {
  return std::max(first_, clock - bound_);
}

std::int64_t ClockTable::oldest_version() const {
  std::int64_t oldest = std::numeric_limits<std::int64_t>::max();
  for (const Worker& worker : workers_) {
    if (!worker.left) {
      oldest = std::min(oldest, version_for(worker.answered + 1));
    }
  }
  return oldest;
}

int ClockTable::slowest() const {
  int slowest = -1;
  for (int worker = 0; worker < workers(); ++worker) {
    if (!workers_[index_of(worker)].left && (slowest < 0 || clock_of(worker) < clock_of(slowest))) {
      slowest = worker;
    }
  }
  return slowest;
}

}  // namespace trireme::detail
