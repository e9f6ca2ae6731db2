#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "trireme/server/stale_engine.h"

namespace trireme::detail {

// What an owner of weights does next with the gradients that have come: pure arithmetic on clocks.
// A worker's clock counts the steps whose gradients it has sent; those of step c make its clock
// c + 1. Nothing here waits: it says nothing until something comes.
class ClockTable {
 public:
  struct Act {
    enum class Kind {
      kApply,   // make an update; with Order::kClock, of all gradients of a step (worker is -1)
      kAnswer,  // send weights for step `clock` + 1
    };
    Kind kind = Kind::kApply;
    int worker = -1;
    std::int64_t clock = 0;
    bool operator==(const Act&) const = default;
  };

  ClockTable(int workers, std::int64_t bound, Order order);

  // Every worker has taken so many steps, and goes on from the weights after `first` of them, or as
  // many more as the bound says.
  void begin_at(std::int64_t clock, std::int64_t first);
  void begin_at(std::int64_t clock) { begin_at(clock, clock); }
  // From now on these, in their order, whoever comes first.
  void follow(std::vector<Act> acts);

  void came(int worker);    // its next gradients
  void leaves(int worker);  // it sends no more
  // Throws ConfigError where what is followed says something else, or ends.
  std::optional<Act> next();

  // Order::kClock: after how many steps the weights are that step `clock` is computed with.
  std::int64_t version_for(std::int64_t clock) const;
  // The oldest of these that somebody will still ask for.
  std::int64_t oldest_version() const;
  // A worker that others wait for: the first one of those that have come least far.
  int slowest() const;
  std::int64_t clock_of(int worker) const { return workers_[index_of(worker)].came; }
  // It has sent gradients, and has no answer yet.
  bool waits(int worker) const {
    return workers_[index_of(worker)].came > workers_[index_of(worker)].answered;
  }
  int workers() const { return static_cast<int>(workers_.size()); }

 private:
  struct Worker {
    std::int64_t came = 0;
    std::int64_t applied = 0;  // with Order::kArrival
    std::int64_t answered = 0;
    bool left = false;
  };
  static std::size_t index_of(int worker) { return static_cast<std::size_t>(worker); }
  std::optional<Act> next_apply();
  std::optional<Act> next_answer();
  std::optional<Act> followed();
  bool may_answer(const Worker& worker) const;

  const std::int64_t bound_;
  const Order order_;
  std::vector<Worker> workers_;
  std::deque<int> arrivals_;  // gradients that came and were not applied, by worker
  std::int64_t applied_ = 0;  // steps, with Order::kClock
  std::int64_t first_ = 0;    // begin_at
  std::optional<std::deque<Act>> script_;
};

}  // namespace trireme::detail
