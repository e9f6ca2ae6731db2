#include "server/shard.h"

#include <algorithm>
#include <cstring>

#include "parallel/engine/update.h"
#include "parallel/memory/runs.h"
#include "server/owned_memory.h"
#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/seconds_since.h"

namespace trireme::detail {

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
      changes_(weights_.rows, workers, stale.order == Order::kClock && stale.bound > 0),
      staleness_(StaleUse::kMost, 0),
      held_up_(index(workers), 0),
      updates_(context.plan.parameters.size(), 0) {}

Shard::~Shard() = default;

Span Shard::owned(std::size_t unit) const {
  return memory_->owned(unit);
}

void Shard::begin_at(std::int64_t clock, std::int64_t version) {
  const std::lock_guard lock(mutex_);
  clocks_.begin_at(clock);
  changes_.begin_at(version);
  version_ = version;
  snapshots_.clear();
  if (order_ == Order::kClock) {
    snapshots_.emplace(version_, snapshot());
  }
  if (record_) {
    record_->all_at(clock);
  }
}

void Shard::go_on_at(std::int64_t clock, std::int64_t first, const WeightsOf& weights_of) {
  const std::lock_guard lock(mutex_);
  clocks_.begin_at(clock, first);
  snapshots_.clear();
  for (version_ = clocks_.version_for(clock);; ++version_) {
    auto made = std::make_shared<Snapshot>();
    made->version = version_;
    made->memory = {device::Buffer(weights_.bytes),
                    context_.ledger.charge(MemoryCategory::kBuckets, weights_.bytes)};
    if (weights_.bytes > 0) {
      std::memcpy(made->memory.buffer.data(), weights_of(version_), weights_.bytes);
    }
    snapshots_.emplace(version_, std::move(made));
    if (version_ == clock) {
      break;
    }
  }
}

std::vector<std::shared_ptr<const Shard::Snapshot>> Shard::snapshots() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Snapshot>> all;
  for (const auto& [version, weights] : snapshots_) {
    all.push_back(weights);
  }
  return all;
}

std::int64_t Shard::version_for(std::int64_t clock) const {
  const std::lock_guard lock(mutex_);
  return clocks_.version_for(clock);
}

void Shard::quietly(const std::function<void()>& body) const {
  const std::lock_guard lock(mutex_);
  body();
}

void Shard::keep_with(Keep keep) {
  const std::lock_guard lock(mutex_);
  keep_ = std::move(keep);
}

StateView Shard::counts() {
  StateView view;
  const auto add = [&](const char* what, Dtype dtype, auto& numbers) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    view.tensors.push_back({what, concat("rank-", context_.ranks.rank()), dtype, {count}, {}});
    view.slices.push_back(
        {view.tensors.size() - 1, {0, count}, reinterpret_cast<std::byte*>(numbers.data())});
  };
  const std::lock_guard lock(mutex_);
  updates_ = optimizer_->rules().steps();
  add("updates", Dtype::kInt64, updates_);
  add("staleness", Dtype::kInt64, staleness_);
  add("held_up", Dtype::kFloat64, held_up_);
  return view;
}

void Shard::take_counts() {
  const std::lock_guard lock(mutex_);
  optimizer_->rules().set_steps(updates_);
}

void Shard::keep_version() {
  if (keep_) {
    std::ranges::copy(optimizer_->rules().steps(), updates_.begin());
    keep_(*snapshots_.at(version_));
  }
}

void Shard::drill(PulsePhase part, std::int64_t step) const {
  drill_step(part, step, context_.ranks.rank(), context_.ranks.size());
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
  push.rows.resize(gradients_.rows.size());
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
  TRIREME_ASSERT(push.header.clock == clocks_.clock_of(worker),
                 "gradients of a step that is not the next one");
  asked_[index(worker)] = Clock::now();
  held_.emplace(std::pair(clocks_.clock_of(worker), worker),
                Held{std::move(push), asked_[index(worker)]});
  clocks_.came(worker);
  act(worker);
}

void Shard::leaves(int worker) {
  const std::lock_guard lock(mutex_);
  clocks_.leaves(worker);
  changes_.leaves(worker);
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
  std::optional<std::int64_t> applied;
  while (const auto next = clocks_.next()) {
    if (records) {
      record_->add(*next);
    }
    if (next->kind == ClockTable::Act::Kind::kApply) {
      apply(*next);
      applied = next->clock;
    } else {
      answer(*next, trigger);
    }
  }
  if (records) {
    record_->flush();  // whoever is killed has said what it did
  }
  if (applied) {
    drill(PulsePhase::kAgreed, *applied);
  }
}

void Shard::apply(const ClockTable::Act& act) {
  const bool all = order_ == Order::kClock;
  drill(PulsePhase::kUpdate, act.clock);
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
  drill(PulsePhase::kVault, act.clock);
  if (all) {
    snapshots_.emplace(version_, snapshot());
    keep_version();
    drill(PulsePhase::kKept, act.clock);
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
  add_rows(pushes);
  for (const Push* push : pushes) {
    for (std::size_t p = 0; p < used.size(); ++p) {
      used[p] = used[p] || push->used[p] != 0;
    }
  }
  std::vector<ChangedRows> changed(gradients_.rows.size());
  if (std::ranges::none_of(used, std::identity())) {
    changes_.made(version_ + 1, changed, [this](std::size_t unit) { return owned(unit); });
    return;  // overflows of float16
  }
  Update update(context_.plan, *memory_);
  optimizer_->update(update,
                     {sums_, used},
                     {.divisor = divisor, .clip_value = context_.options.clip_value},
                     pushes.front()->header.rate);
  for (std::size_t i = 0; i < changed.size(); ++i) {
    changed[i] = memory_->changed(gradients_.rows[i].unit);
    sums_.rows(gradients_.rows[i].unit).clear();
  }
  changes_.made(version_ + 1, changed, [this](std::size_t unit) { return owned(unit); });
}

// In the order of the workers, too.
void Shard::add_rows(const std::vector<const Push*>& pushes) {
  for (std::size_t i = 0; i < gradients_.rows.size(); ++i) {
    const OwnedPart& part = gradients_.rows[i];
    const std::size_t parameter = context_.plan.units[part.unit].parameters[0];
    TouchedRows& sums = sums_.rows(part.unit);
    for (const Push* push : pushes) {
      const Push::Rows& its = push->rows[i];
      if (push->used[parameter] != 0) {
        sums.add(its.rows,
                 {its.values.data(),
                  static_cast<std::int64_t>(its.rows.size()) * part.width,
                  gradients_.dtype(context_.plan, part)});
      }
    }
    sums.sort();
  }
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
  send_(act.worker,
        std::make_shared<const Weights>(Weights{
            weights, changes_.answer(act.worker, version, version_, [this](std::size_t unit) {
              return owned(unit);
            })}));
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
