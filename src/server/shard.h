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
#include "server/row_changes.h"
#include "trireme/core/deadline.h"
#include "trireme/core/pulse.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {

class OwnedMemory;

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
    std::int64_t clock = 0;          // of which step, counted from 0: none is taken twice
    std::int64_t version = 0;        // of the weights that they are of
    std::int64_t micro_batches = 0;  // that they are the sum of
    double rate = 0;
  };
  struct Push {
    PushHeader header;
    std::vector<std::uint8_t> used;  // by parameter: it has a gradient
    Memory values;                   // OwnedParts
    struct Rows {
      std::vector<std::int64_t> rows;  // which ascend
      std::vector<std::byte> values;   // of whole rows
    };
    std::vector<Rows> rows;  // by OwnedParts::rows
  };
  // Weights for a worker; they do not change any more.
  struct Snapshot {
    std::int64_t version = 0;
    Memory memory;
  };
  struct Weights {
    std::shared_ptr<const Snapshot> dense;
    std::vector<ChangedRows> rows;  // by OwnedParts::rows: what this worker has not
  };
  using Answer = std::function<void(int worker, std::shared_ptr<const Weights> weights)>;

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
  // The same after a loss: the weights are of `clock`, and those before it, with which steps are
  // still to be computed, are given by their version, as weights() has them.
  using WeightsOf = std::function<const std::byte*(std::int64_t version)>;
  void go_on_at(std::int64_t clock, std::int64_t first, const WeightsOf& weights_of);
  std::int64_t version() const;
  // Order::kClock: those that somebody may ask for, oldest first.
  std::vector<std::shared_ptr<const Snapshot>> snapshots() const;
  std::int64_t version_for(std::int64_t clock) const;
  void record(const std::string& folder, const std::vector<std::string>& run);
  void goes_on_from(std::int64_t clock);  // what is recorded
  void follow(std::vector<ClockTable::Act> acts);

  Push spare();  // to be filled
  void take(int worker, Push push);
  void leaves(int worker);
  void flush();  // the record
  // Nothing is taken meanwhile.
  void quietly(const std::function<void()>& body) const;

  // Every version is given to this before anyone gets it. From any thread, one at a time.
  using Keep = std::function<void(const Snapshot& made)>;
  void keep_with(Keep keep);
  // What is counted, as named ranges of this rank, which do not move and are up to date when a
  // version is kept. After they were written, take_counts() follows them.
  StateView counts();
  void take_counts();

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
  struct Held {
    Push push;
    Clock::time_point came;
  };

  void act(int trigger);
  void apply(const ClockTable::Act& act);
  void update(const std::vector<const Push*>& pushes, double divisor);
  void answer(const ClockTable::Act& act, int trigger);
  std::shared_ptr<const Snapshot> snapshot();
  void keep_version();
  void add_rows(const std::vector<const Push*>& pushes);
  void drill(PulsePhase part, std::int64_t step) const;

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
  RowChanges changes_;
  std::vector<std::int64_t> staleness_;
  std::vector<double> held_up_;        // by worker, in seconds
  std::vector<std::int64_t> updates_;  // of each parameter, for those who keep it
  Keep keep_;
};

}  // namespace trireme::detail
