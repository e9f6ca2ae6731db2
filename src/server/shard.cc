#include "server/shard.h"

#include <algorithm>

#include "parallel/engine/update.h"
#include "parallel/memory/runs.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/seconds_since.h"

namespace trireme::detail {

// The parameters as their owner has them; what ranks compute with is elsewhere.
class Shard::OwnedMemory final : public ParameterMemory {
 public:
  explicit OwnedMemory(const PartContext& context) {
    for (std::size_t u = 0; u < context.plan.units.size(); ++u) {
      const Unit& unit = context.plan.units[u];
      const std::int64_t numel = context.plan.ownership.mine(u).size();
      const std::size_t bytes = static_cast<std::size_t>(numel) * dtype_bytes(unit.dtype);
      memory_.push_back(
          {device::Buffer(bytes), context.ledger.charge(MemoryCategory::kParameters, bytes)});
      owned_.emplace_back(memory_.back().buffer.data(), numel, unit.dtype);
    }
  }

  Span owned(std::size_t unit) override { return owned_[unit]; }
  // Nobody else reads it.
  void begin_update() override {}
  void updated(std::size_t) override {}
  void finish_update() override {}

  // The engine's own memory does all of these.
  void adopt(std::size_t) override { refuse(); }
  void read(std::size_t, Range, const Span&) override { refuse(); }
  void write(std::size_t, Range, const ConstSpan&) override { refuse(); }
  void attach(std::size_t) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw InternalError("a shard has no tensors"); }

  std::vector<Memory> memory_;
  std::vector<Span> owned_;
};

Shard::Shard(const Optimizer& optimizer,
             const PartContext& context,
             int workers,
             const Stale& stale,
             Answer answer)
    : context_(context),
      order_(stale.order),
      gradients_(context.plan, context.ranks.rank(), Content::kGradients),
      weights_(context.plan, context.ranks.rank(), Content::kWeights),
      send_(std::move(answer)),
      memory_(std::make_unique<OwnedMemory>(context)),
      sums_(context),
      optimizer_owner_(std::make_unique<ShardedOptimizer>(optimizer, context, *memory_)),
      optimizer_(optimizer_owner_.get()),
      clocks_(workers, stale.bound, stale.order),
      asked_(index(workers)),
      staleness_(StaleUse::kMost, 0),
      held_up_(index(workers), 0) {}

Shard::~Shard() = default;

Span Shard::owned(std::size_t unit) const {
  return memory_->owned(unit);
}

void Shard::begin_at(std::int64_t clock, std::int64_t version) {
  const std::lock_guard lock(mutex_);
  clocks_.begin_at(clock);
  version_ = version;
  snapshots_.clear();
  if (order_ == Order::kClock) {
    snapshots_.emplace(version_, snapshot());
  }
  if (record_) {
    record_->all_at(clock);
  }
}

std::int64_t Shard::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

void Shard::record(const std::string& folder, const std::vector<std::string>& run) {
  record_ = std::make_unique<ArrivalRecord>(folder, context_.ranks.rank(), run);
}

void Shard::goes_on_from(std::int64_t clock) {
  const std::lock_guard lock(mutex_);
  if (record_) {
    record_->go_on_from(clock);
  }
}

void Shard::follow(std::vector<ClockTable::Act> acts) {
  const std::lock_guard lock(mutex_);
  clocks_.follow(std::move(acts));
}

Shard::Push Shard::spare() {
  Push push;
  push.used.resize(context_.plan.parameters.size());
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) {
    push.values = {device::Buffer(gradients_.bytes),
                   context_.ledger.charge(MemoryCategory::kBuckets, gradients_.bytes)};
  } else {
    push.values = std::move(spare_.back());
    spare_.pop_back();
  }
  return push;
}

void Shard::take(int worker, Push push) {
  const std::lock_guard lock(mutex_);
  asked_[index(worker)] = Clock::now();
  held_.emplace(std::pair(clocks_.clock_of(worker), worker),
                Held{std::move(push), asked_[index(worker)]});
  clocks_.came(worker);
  act(worker);
}

void Shard::leaves(int worker) {
  const std::lock_guard lock(mutex_);
  clocks_.leaves(worker);
  if (record_ && order_ == Order::kArrival) {
    record_->leaves(worker);
    record_->flush();
  }
  act(worker);
}

void Shard::flush() {
  const std::lock_guard lock(mutex_);
  if (record_) {
    record_->flush();
  }
}

// Everything that can be done now, because of this worker.
void Shard::act(int trigger) {
  const bool records = record_ && order_ == Order::kArrival;
  while (const auto next = clocks_.next()) {
    if (records) {
      record_->add(*next);
    }
    if (next->kind == ClockTable::Act::Kind::kApply) {
      apply(*next);
    } else {
      answer(*next, trigger);
    }
  }
  if (records) {
    record_->flush();  // whoever is killed has said what it did
  }
}

void Shard::apply(const ClockTable::Act& act) {
  const bool all = order_ == Order::kClock;
  const auto begin = all ? held_.lower_bound({act.clock, 0}) : held_.find({act.clock, act.worker});
  const auto end = all ? held_.lower_bound({act.clock + 1, 0}) : std::next(begin);
  std::vector<const Push*> pushes;
  double divisor = 0;
  for (auto it = begin; it != end; ++it) {
    const PushHeader& header = it->second.push.header;
    pushes.push_back(&it->second.push);
    divisor += static_cast<double>(header.micro_batches);
    const auto stale =
        static_cast<std::size_t>(std::max<std::int64_t>(version_ - header.version, 0));
    ++staleness_[std::min(stale, StaleUse::kMost - 1)];
  }
  // A step of all ranks moves the weights of SGD as far in both orders.
  update(pushes, all ? divisor : divisor * clocks_.workers());
  for (auto it = begin; it != end; ++it) {
    spare_.push_back(std::move(it->second.push.values));
  }
  held_.erase(begin, end);
  ++version_;
  if (all) {
    snapshots_.emplace(version_, snapshot());
    snapshots_.erase(snapshots_.begin(),
                     snapshots_.lower_bound(std::min(clocks_.oldest_version(), version_)));
  } else {
    snapshots_.clear();
  }
}

// The sum is a chain in the order of the workers, as a synchronous step has it.
void Shard::update(const std::vector<const Push*>& pushes, double divisor) {
  std::vector<bool> used(context_.plan.parameters.size(), false);
  for (const OwnedPart& part : gradients_.parts) {
    for (const Piece& piece : context_.plan.units[part.unit].layout.pieces(part.range)) {
      const std::size_t parameter = context_.plan.parameter_of(part.unit, piece);
      const Dtype dtype = gradients_.dtype(context_.plan, part);
      const Span sum = sums_.at(part.unit, {piece.offset, piece.offset + piece.numel});
      const std::size_t offset =
          part.offset +
          static_cast<std::size_t>(piece.offset - part.range.begin) * dtype_bytes(dtype);
      bool first = true;
      for (const Push* push : pushes) {
        if (push->used[parameter] != 0) {
          device::host().add(sum, {push->values.buffer.data() + offset, piece.numel, dtype}, first);
          first = false;
        }
      }
    }
  }
  for (const Push* push : pushes) {
    for (std::size_t p = 0; p < used.size(); ++p) {
      used[p] = used[p] || push->used[p] != 0;
    }
  }
  if (std::ranges::none_of(used, std::identity())) {
    return;  // overflows of float16
  }
  Update update(context_.plan, *memory_);
  optimizer_->update(update,
                     {sums_, used},
                     {.divisor = divisor, .clip_value = context_.options.clip_value},
                     pushes.front()->header.rate);
}

void Shard::answer(const ClockTable::Act& act, int trigger) {
  const std::int64_t version =
      order_ == Order::kClock ? clocks_.version_for(act.clock + 1) : version_;
  auto& weights = snapshots_[version];
  if (!weights && version == version_) {
    weights = snapshot();
  }
  TRIREME_ASSERT(weights != nullptr, "weights of a version that somebody needs are gone");
  if (trigger != act.worker) {
    held_up_[index(trigger)] += seconds_since(asked_[index(act.worker)]);
  }
  send_(act.worker, weights);
}

std::shared_ptr<const Shard::Snapshot> Shard::snapshot() {
  auto made = std::make_shared<Snapshot>();
  made->version = version_;
  made->memory = {device::Buffer(weights_.bytes),
                  context_.ledger.charge(MemoryCategory::kBuckets, weights_.bytes)};
  for (const OwnedPart& part : weights_.parts) {
    const Span from = memory_->owned(part.unit);
    device::host().copy({made->memory.buffer.data() + part.offset, from.numel(), from.dtype()},
                        from);
  }
  return made;
}

std::optional<Shard::Late> Shard::late(Milliseconds most) const {
  const std::lock_guard lock(mutex_);
  const int slowest = clocks_.slowest();
  for (int worker = 0; worker < clocks_.workers(); ++worker) {
    if (worker != slowest && clocks_.waits(worker) && Clock::now() - asked_[index(worker)] > most) {
      return Late{slowest, clocks_.clock_of(slowest), worker};
    }
  }
  return std::nullopt;
}

std::vector<std::int64_t> Shard::staleness() const {
  const std::lock_guard lock(mutex_);
  return staleness_;
}

std::vector<double> Shard::held_up() const {
  const std::lock_guard lock(mutex_);
  return held_up_;
}

}  // namespace trireme::detail
