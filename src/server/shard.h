#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/buffer.h"
#include "parallel/engine/sharded_optimizer.h"
#include "server/arrival_record.h"
#include "server/clock_table.h"
#include "server/owned_parts.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// What this rank owns of the weights, with the optimizer's states: takes gradients of workers,
// makes updates of them, and answers with weights, in the order that its clocks say. From any
// thread.
class Shard {
 public:
  // Memory for gradients or weights, on the books.
  struct Memory {
    device::Buffer buffer;
    MemoryLedger::Charge charge;
  };
  // What comes first in a message with gradients.
  struct PushHeader {
    std::int64_t leaves = 0;         // 1: nothing follows, and nothing will
    std::int64_t version = 0;        // of the weights that they are of
    std::int64_t micro_batches = 0;  // that they are the sum of
    double rate = 0;
  };
  struct Push {
    PushHeader header;
    std::vector<std::uint8_t> used;  // by parameter: it has a gradient
    Memory values;                   // OwnedParts
  };
  // Weights for a worker; they do not change any more.
  struct Snapshot {
    std::int64_t version = 0;
    Memory memory;
  };
  using Answer = std::function<void(int worker, const std::shared_ptr<const Snapshot>& weights)>;

  // `context.plan` says what the ranks own. Weights begin as zeros. Collective.
  Shard(const Optimizer& optimizer,
        const PartContext& context,
        int workers,
        const Stale& stale,
        Answer answer);

  ~Shard();

  ShardedOptimizer* optimizer() { return optimizer_; }
  // Another owner of it looks after what it has; here it is used as long as that lives.
  std::unique_ptr<ShardedOptimizer> give_optimizer() { return std::move(optimizer_owner_); }
  const OwnedParts& gradients() const { return gradients_; }
  const OwnedParts& weights() const { return weights_; }
  // The parameters, in their own precision.
  Span owned(std::size_t unit) const;

  // Every worker has taken so many steps. `version`: what the weights are called from here on.
  void begin_at(std::int64_t clock, std::int64_t version);
  std::int64_t version() const;
  void record(const std::string& folder, const std::vector<std::string>& run);
  void goes_on_from(std::int64_t clock);  // what is recorded
  void follow(std::vector<ClockTable::Act> acts);

  Push spare();  // to be filled
  void take(int worker, Push push);
  void leaves(int worker);
  void flush();  // the record

  // A worker that others have waited for longer than this, if there is one.
  struct Late {
    int worker = 0;
    std::int64_t clock = 0;
    int waiting = 0;  // one that waits for it
  };
  std::optional<Late> late(Milliseconds most) const;

  std::vector<std::int64_t> staleness() const;
  std::vector<double> held_up() const;

 private:
  class OwnedMemory;
  struct Held {
    Push push;
    Clock::time_point came;
  };

  void act(int trigger);
  void apply(const ClockTable::Act& act);
  void update(const std::vector<const Push*>& pushes, double divisor);
  void answer(const ClockTable::Act& act, int trigger);
  std::shared_ptr<const Snapshot> snapshot();

  const PartContext context_;
  const Order order_;
  const OwnedParts gradients_;
  const OwnedParts weights_;
  const Answer send_;
  std::unique_ptr<OwnedMemory> memory_;
  GradientSums sums_;
  std::unique_ptr<ShardedOptimizer> optimizer_owner_;
  ShardedOptimizer* const optimizer_;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  ClockTable clocks_;
  std::unique_ptr<ArrivalRecord> record_;
  std::map<std::pair<std::int64_t, int>, Held> held_;  // by step and worker: not applied yet
  std::vector<Clock::time_point> asked_;               // by worker: when its last push came
  std::vector<Memory> spare_;
  std::int64_t version_ = 0;  // updates so far
  // Those that somebody may ask for, by version; with Order::kArrival the newest one.
  std::map<std::int64_t, std::shared_ptr<const Snapshot>> snapshots_;
  std::vector<std::int64_t> staleness_;
  std::vector<double> held_up_;  // by worker, in seconds
};

}  // namespace trireme::detail
