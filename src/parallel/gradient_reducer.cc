#include "parallel/gradient_reducer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include "parallel/accumulate.h"
#include "parallel/copy_kernels.h"
#include "parallel/sparse_rows.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

// The gradient's elements in the order of the parameter's memory and in its dtype.
at::Tensor in_order_of(const Parameter& parameter, Dtype dtype, const at::Tensor& gradient) {
  TRIREME_CHECK(gradient.sizes() == at::IntArrayRef(parameter.sizes),
                "the gradient of parameter ",
                parameter.name,
                " has sizes ",
                gradient.sizes(),
                ", the parameter had ",
                at::IntArrayRef(parameter.sizes),
                " when the engine was built: its shape must not change");
  const at::ScalarType type = scalar_type_of(dtype);
  // Memory that is to be read with another sign is not what it looks like.
  if (gradient.scalar_type() == type && gradient.layout() == at::kStrided && !gradient.is_neg() &&
      (gradient.strides() == at::IntArrayRef(parameter.strides) ||
       (gradient.is_contiguous() && at::IntArrayRef(c10::contiguous_strides(parameter.sizes)) ==
                                        at::IntArrayRef(parameter.strides)))) {
    return gradient;
  }
  const at::Tensor dense = gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
  at::Tensor ordered = at::empty_strided(
      parameter.sizes, parameter.strides, at::TensorOptions().dtype(type).device(at::kCPU));
  ordered.copy_(dense);
  return ordered;
}

}  // namespace

GradientReducer::GradientReducer(const std::vector<Parameter>& parameters,
                                 const std::vector<Unit>& units,
                                 const std::vector<Place>& places,
                                 const EngineOptions& options,
                                 std::int64_t rounds,
                                 Communicator& ranks,
                                 Communicator& owners,
                                 MemoryLedger& ledger)
    : parameters_(parameters),
      units_(units),
      places_(places),
      options_(options),
      rounds_(rounds),
      ranks_(ranks),
      ledger_(ledger),
      replicated_(owners.size() != ranks.size()),
      sums_(units, options, ranks, owners, ledger),
      records_(parameters.size(), ranks),
      buckets_of_(parameters.size()),
      present_(parameters.size(), GradientState::kAbsent),
      accumulated_(parameters.size(), 0),
      local_(parameters.size(), 0) {
  std::vector<FlatLayout> layouts;
  layouts.reserve(units.size());
  for (const Unit& unit : units) {
    layouts.push_back(unit.trainable && !unit.sparse ? unit.layout : FlatLayout({}, unit.dtype));
  }
  buckets_ = plan_buckets(layouts, options.bucket_bytes);
  states_.resize(buckets_.size());
  order_.resize(buckets_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Unit& unit = units[buckets_[b].unit];
    for (const Piece& piece : buckets_[b].pieces) {
      buckets_of_[unit.parameters[piece.parameter]].push_back(b);
    }
  }
  for (const Unit& unit : units) {
    TRIREME_CHECK(!replicated_ || !unit.sparse,
                  "parameter ",
                  parameters[unit.parameters[0]].name,
                  " has sparse gradients: divide among all ranks (EngineOptions::shard_group)");
  }
  const int group = ranks.sum_group();
  TRIREME_CHECK(group == 1 || ranks.size() % group == 0 || group % ranks.size() == 0,
                "sums add up groups of ",
                group,
                " micro-batches (sum_group), which neither divides the ",
                ranks.size(),
                " ranks nor is a multiple of them: choose one that does");
  for (const Unit& unit : units) {
    TRIREME_CHECK(group == 1 || !unit.sparse,
                  "parameter ",
                  parameters[unit.parameters[0]].name,
                  " has sparse gradients, which are added up one by one: leave sum_group at 1");
  }
  set_rounds(rounds);
}

std::int64_t GradientReducer::rounds_per_group() const {
  const int group = ranks_.sum_group();
  const bool spans = group > ranks_.size() && options_.sum_order == SumOrder::kChained &&
                     rounds_ > 1 && !options_.gradient_hook;
  return spans ? group / ranks_.size() : 0;
}

// The sums of a group that is complete go to the totals.
void GradientReducer::close_group() {
  while (!in_flight_.empty()) {
    wait_for_oldest();
  }
  records_.take(accumulated_);
  sums_.add_to_totals(accumulated_);
  std::fill(accumulated_.begin(), accumulated_.end(), 0);
  std::fill(local_.begin(), local_.end(), 0);
}

void GradientReducer::make_ring() {
  std::size_t slot_bytes = 0;
  for (const Bucket& bucket : buckets_) {
    const Unit& unit = units_[bucket.unit];
    if (space_of(unit) == Space::kRing) {
      slot_bytes =
          std::max(slot_bytes,
                   static_cast<std::size_t>(bucket.range.size()) * dtype_bytes(bucket_dtype(unit)));
    }
  }
  if (slot_bytes > ring_.slot_bytes()) {
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(options_.bucket_count, static_cast<std::int64_t>(buckets_.size())));
    ring_ = BucketRing(ranks_, slot_bytes, count, ledger_);
  }
}

void GradientReducer::set_rounds(std::int64_t rounds) {
  const std::int64_t before = rounds_;
  rounds_ = rounds;
  try {
    if (rounds_per_group() > 0) {
      sums_.make_totals();
    }
    make_ring();
  } catch (...) {
    rounds_ = before;
    throw;
  }
}

// In the middle of a step its operations go on: the others may need them, and they keep the memory
// that they use.
GradientReducer::~GradientReducer() {
  for (Flight& flight : in_flight_) {
    flight.work.forget();
  }
  released_.forget();  // nobody will write to these sums again
}

GradientReducer::Space GradientReducer::space_of(const Unit& unit) const {
  if (ranks_.size() == 1) {
    return Space::kInPlace;
  }
  if (options_.sum_order == SumOrder::kLocalFirst) {
    return options_.zero <= 1 ? Space::kInPlace : Space::kLocal;
  }
  // 16-bit gradients are summed in float32, so not where they are.
  return options_.zero <= 1 && rounds_ == 1 && !unit.has_masters() ? Space::kInPlace : Space::kRing;
}

bool GradientReducer::adds_locally() const {
  return ranks_.size() == 1 || options_.sum_order == SumOrder::kLocalFirst;
}

Dtype GradientReducer::bucket_dtype(const Unit& unit) const {
  // Sums that go back into the bucket have their own precision.
  return adds_locally() || replicated_ ? unit.sum_dtype() : unit.dtype;
}

void GradientReducer::wait_until_released() {
  if (release_pending_) {
    released_.wait();
    release_pending_ = false;
  }
}

void GradientReducer::begin_round(bool last_of_this_rank, const std::vector<bool>& expected) {
  wait_until_released();
  const std::int64_t spans = rounds_per_group();
  if (spans > 0 && rounds_done_ > 0 && rounds_done_ % spans == 0) {
    close_group();
  }
  last_round_of_this_rank_ = last_of_this_rank;
  expected_ = expected;
  std::fill(present_.begin(), present_.end(), GradientState::kAbsent);
  next_ = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    states_[b] = {};
    const Unit& unit = units_[buckets_[b].unit];
    for (const Piece& piece : buckets_[b].pieces) {
      states_[b].missing += expected[unit.parameters[piece.parameter]] ? piece.numel : 0;
    }
  }
}

void GradientReducer::add(std::size_t parameter, const at::Tensor& gradient) {
  const Parameter& p = parameters_[parameter];
  TRIREME_CHECK(
      present_[parameter] == GradientState::kAbsent,
      "parameter ",
      p.name,
      " got two gradients in one backward on rank ",
      ranks_.rank(),
      ": its layer is in two segments that are recomputed (activation checkpointing), each "
      "of which hands over a gradient of its own: put all uses of a layer into one segment, "
      "or recompute only one of them");
  if (units_[places_[parameter].unit].sparse) {
    const at::Tensor rows = gradient.is_sparse() ? gradient : gradient.to_sparse(1);
    sparse_.emplace_back(parameter, rows.coalesce());
    const at::Tensor values = sparse_.back().second._values();
    present_[parameter] =
        values.isfinite().all().item<bool>() ? GradientState::kPresent : GradientState::kNotFinite;
    return;
  }
  const at::NoGradGuard no_grad;
  const Place& place = places_[parameter];
  const Unit& unit = units_[place.unit];
  const at::Tensor ordered = in_order_of(p, unit.dtype, gradient);
  const auto* from = static_cast<const std::byte*>(ordered.const_data_ptr());
  const std::size_t element = dtype_bytes(unit.dtype);
  const std::size_t sum_element = dtype_bytes(unit.sum_dtype());
  const bool local = adds_locally();
  const bool first = !local_[parameter];
  bool finite = true;
  present_[parameter] = GradientState::kPresent;  // before a bucket with it can be launched
  for (const std::size_t b : buckets_of_[parameter]) {
    TRIREME_CHECK(
        !states_[b].launched,
        "parameter ",
        p.name,
        " got a gradient that the graph of the loss does not lead to (a backward inside of "
        "backward?): rank ",
        ranks_.rank(),
        " already reported that there is none");
    std::byte* memory = acquire(b);
    for (const Piece& piece : buckets_[b].pieces) {
      if (piece.parameter != place.index) {
        continue;
      }
      const auto at = static_cast<std::size_t>(piece.offset - buckets_[b].range.begin);
      const std::byte* source = from + static_cast<std::size_t>(piece.begin) * element;
      if ((local && !first) || (bucket_dtype(unit) != unit.dtype)) {
        std::byte* to = memory + at * sum_element;
        accumulate(to, unit.sum_dtype(), source, unit.dtype, piece.numel, first || !local);
        // The micro-batch's own gradient, as elsewhere: the sum may overflow for any world size.
        finite &= all_finite(unit.dtype, source, piece.numel);
      } else {
        finite &= copy_finite(unit.dtype, memory + at * element, source, piece.numel);
      }
      // One that nobody expected does not stand in for one that is still to come.
      states_[b].missing -= expected_[parameter] ? piece.numel : 0;
    }
    if (states_[b].missing == 0) {
      filled_.push_back(b);
    }
    if (!finite) {
      present_[parameter] = GradientState::kNotFinite;
    }
    launch_ready();
  }
  local_[parameter] = 1;
  poll();
}

std::byte* GradientReducer::acquire(std::size_t b) {
  State& state = states_[b];
  if (state.memory == nullptr) {
    const Bucket& bucket = buckets_[b];
    switch (space_of(units_[bucket.unit])) {
      case Space::kInPlace:
        state.memory = sums_.at(bucket.unit, bucket.range.begin);
        break;
      case Space::kLocal:
        state.memory = sums_.local(bucket.unit, bucket.range.begin);
        break;
      case Space::kRing:
        state.slot = acquire_slot();
        state.memory = ring_.data(state.slot);
        if (options_.gradient_hook) {
          std::memset(state.memory, 0, ring_.slot_bytes());  // a hook sees the gaps, too
        }
        break;
    }
  }
  return state.memory;
}

std::shared_ptr<const void> GradientReducer::owner_of(std::size_t b, int slot) const {
  const std::size_t unit = buckets_[b].unit;
  switch (space_of(units_[unit])) {
    case Space::kInPlace:
      return sums_.owner(unit);
    case Space::kLocal:
      return sums_.local_owner(unit);
    case Space::kRing:
      return ring_.owner(slot);
  }
  return {};
}

// Note [waiting for a slot]
// Buckets are launched in one order on all ranks, so the oldest one that this rank has launched
// needs nothing from it any more: waiting for it cannot be a circle. Where nothing has been
// launched, because gradients come in another order than expected, waiting could be one: then the
// ring grows.
int GradientReducer::acquire_slot() {
  poll();
  while (!ring_.has_free() && !in_flight_.empty()) {
    wait_for_oldest();
  }
  if (!ring_.has_free()) {
    if (!told_of_growth_ && learned_) {
      told_of_growth_ = true;
      log(LogLevel::kWarning,
          concat("rank ",
                 ranks_.rank(),
                 ": gradients arrive in an unexpected order, and more than ",
                 ring_.size(),
                 " buckets are half full: the memory for buckets grows "
                 "(EngineOptions::bucket_count)"));
    }
    return ring_.grow();
  }
  return ring_.take();
}

void GradientReducer::launch_ready() {
  if (ranks_.size() == 1 && !options_.gradient_hook) {
    return;  // what was written is the sum
  }
  if (adds_locally() && !last_round_of_this_rank_) {
    return;
  }
  while (next_ < order_.size() && states_[order_[next_]].missing == 0) {
    launch(order_[next_++]);  // also one that nothing will come for
  }
}

std::vector<Range> GradientReducer::absent_ranges(const Bucket& bucket) const {
  const Unit& unit = units_[bucket.unit];
  std::vector<Range> absent;
  bool any = false;
  for (const Piece& piece : bucket.pieces) {
    const std::size_t parameter = unit.parameters[piece.parameter];
    const bool there =
        present_[parameter] != GradientState::kAbsent || (adds_locally() && local_[parameter]);
    if (there) {
      any = true;
      continue;
    }
    const Range range{piece.offset - bucket.range.begin,
                      piece.offset - bucket.range.begin + piece.numel};
    if (!absent.empty() && !any) {
      absent.back().end = range.end;  // nothing but a gap between them
    } else {
      absent.push_back(range);
    }
    any = false;
  }
  return absent;
}

std::vector<Range> GradientReducer::fresh_ranges(const Bucket& bucket) const {
  const Unit& unit = units_[bucket.unit];
  std::vector<Range> fresh;
  for (const Piece& piece : bucket.pieces) {
    if (!accumulated_[unit.parameters[piece.parameter]]) {
      fresh.push_back(
          {piece.offset - bucket.range.begin, piece.offset - bucket.range.begin + piece.numel});
    }
  }
  return fresh;
}

void GradientReducer::launch(std::size_t b) {
  const Bucket& bucket = buckets_[b];
  const Unit& unit = units_[bucket.unit];
  State& state = states_[b];
  state.launched = true;
  std::vector<Range> absent = absent_ranges(bucket);
  if (options_.gradient_hook) {
    launch_hooked(b, absent);
    return;
  }
  const Space space = space_of(unit);
  std::byte* memory = state.memory;
  if (memory == nullptr) {
    // Nothing of this bucket came. It is not read, but has to be somewhere.
    memory = space == Space::kRing && !replicated_ ? ring_.data(0) : acquire(b);
  }
  // The engine may end before the operation does.
  const Span gradients{
      memory, bucket.range.size(), bucket_dtype(unit), owner_of(b, std::max(state.slot, 0))};
  Flight flight{b, state.slot, {}};
  SumTerms terms{.absent = std::move(absent)};
  if (replicated_) {
    flight.work = ranks_.all_reduce(gradients, ReduceOp::kSum, std::move(terms));
    flight.memory = memory;
    in_flight_.push_back(std::move(flight));
    return;
  }
  Counts counts;
  for (const Range& range : unit.ranges) {
    counts.push_back(intersection(range, bucket.range).size());
  }
  const Range own = intersection(sums_.mine(bucket.unit), bucket.range);
  if (const std::int64_t spans = rounds_per_group()) {
    terms.group = 1;  // the rounds of a group are one chain
    if (rounds_done_ % spans != 0) {
      records_.take(accumulated_);
      terms.accumulate = true;
      terms.fresh = fresh_ranges(bucket);
    }
  } else if (space == Space::kRing && rounds_done_ > 0) {
    records_.take(accumulated_);
    terms.accumulate = true;
    terms.fresh = fresh_ranges(bucket);
  }
  flight.work = ranks_.reduce_scatter(
      gradients,
      {sums_.at(bucket.unit, own.begin), own.size(), unit.sum_dtype(), sums_.owner(bucket.unit)},
      ReduceOp::kSum,
      std::move(counts),
      std::move(terms));
  in_flight_.push_back(std::move(flight));
}

// A user's sum instead of ours. It has no absent terms: they are zeros.
void GradientReducer::launch_hooked(std::size_t b, const std::vector<Range>& absent) {
  const Bucket& bucket = buckets_[b];
  const Unit& unit = units_[bucket.unit];
  const Space space = space_of(unit);
  const Dtype dtype = bucket_dtype(unit);
  std::byte* memory = acquire(b);
  for (const Range& range : absent) {
    std::memset(memory + static_cast<std::size_t>(range.begin) * dtype_bytes(dtype),
                0,
                static_cast<std::size_t>(range.size()) * dtype_bytes(dtype));
  }
  const std::int64_t numel = bucket.range.size();
  at::Tensor values =
      at::from_blob(memory, {numel}, at::TensorOptions().dtype(scalar_type_of(dtype)));
  const at::Tensor summed = options_.gradient_hook({.index = b, .values = values, .ranks = ranks_});
  TRIREME_CHECK(summed.defined() && summed.numel() == numel,
                "the gradient hook was given ",
                numel,
                " values and returned ",
                summed.defined() ? summed.numel() : 0,
                ": return the sum of all of them over the ranks");
  const at::Tensor exact =
      summed.reshape({numel}).to(scalar_type_of(unit.sum_dtype())).contiguous();
  const Range range = intersection(sums_.mine(bucket.unit), bucket.range);
  if (ranks_.size() == 1) {
    std::memcpy(sums_.at(bucket.unit, range.begin),
                exact.const_data_ptr(),
                static_cast<std::size_t>(numel) * dtype_bytes(unit.sum_dtype()));
  } else {
    accumulate(sums_.at(bucket.unit, range.begin),
               unit.sum_dtype(),
               static_cast<const std::byte*>(exact.const_data_ptr()) +
                   static_cast<std::size_t>(range.begin - bucket.range.begin) *
                       dtype_bytes(unit.sum_dtype()),
               unit.sum_dtype(),
               range.size(),
               rounds_done_ == 0 || space != Space::kRing);
  }
  if (states_[b].slot >= 0) {
    ring_.give_back(states_[b].slot);
  }
}

void GradientReducer::poll() {
  while (!in_flight_.empty() && in_flight_.front().work.done()) {
    retire(in_flight_.front());
    in_flight_.pop_front();
  }
}

void GradientReducer::wait_for_oldest() {
  in_flight_.front().work.wait();
  retire(in_flight_.front());
  in_flight_.pop_front();
}

void GradientReducer::retire(Flight& flight) {
  if (replicated_) {
    // What nobody has contributed to is not looked at (Agreement::used).
    const Bucket& bucket = buckets_[flight.bucket];
    const Range own = intersection(sums_.mine(bucket.unit), bucket.range);
    const std::size_t element = dtype_bytes(units_[bucket.unit].sum_dtype());
    std::byte* to = sums_.at(bucket.unit, own.begin);
    const std::byte* from =
        flight.memory + static_cast<std::size_t>(own.begin - bucket.range.begin) * element;
    if (!own.empty() && to != from) {
      std::memcpy(to, from, static_cast<std::size_t>(own.size()) * element);
    }
  }
  if (flight.slot >= 0) {
    ring_.give_back(flight.slot);
  }
}

void GradientReducer::end_round(const RoundEnd& end) {
  const bool one_communication = options_.sum_order == SumOrder::kLocalFirst && ranks_.size() > 1;
  if (one_communication && !last_round_of_this_rank_) {
    records_.note(present_);
    if (end.took_part) {
      records_.count_micro_batch();
    }
    return;
  }
  // What has not come by now is absent.
  if (ranks_.size() > 1 || (options_.gradient_hook && last_round_of_this_rank_)) {
    while (next_ < order_.size()) {
      launch(order_[next_++]);
    }
  }
  if (end.given_up) {
    sparse_.clear();
  }
  reduce_sparse();
  records_.take(accumulated_);
  if (!one_communication) {
    records_.forget_own();
  }
  if (end.took_part) {
    records_.count_micro_batch();
  }
  records_.note(present_);
  records_.tell(end.joined, end.given_up, end.rate);
  ++rounds_done_;
}

// Note [sparse gradients and memory]
// Everything that needs memory of the tensors' allocator, which may be refused on one rank alone,
// comes before the first call that the ranks make together: a rank that fails can then still give
// up the step.
void GradientReducer::reduce_sparse() {
  std::vector<SparseRows> rows;
  for (const Unit& unit : units_) {
    if (!unit.sparse) {
      continue;
    }
    // One gradient, or those of all micro-batches of this rank (SumOrder::kLocalFirst).
    at::Tensor gradient;
    for (const auto& [which, more] : sparse_) {
      if (which == unit.parameters[0]) {
        gradient = gradient.defined() ? (gradient + more).coalesce() : more;
      }
    }
    rows.emplace_back(unit, parameters_[unit.parameters[0]], gradient);
  }
  auto next = rows.begin();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = units_[u];
    if (!unit.sparse) {
      continue;
    }
    const std::size_t parameter = unit.parameters[0];
    const Range range = sums_.mine(u);
    if (!local_[parameter]) {
      std::memset(sums_.at(u, range.begin),
                  0,
                  static_cast<std::size_t>(range.size()) * dtype_bytes(unit.sum_dtype()));
      local_[parameter] = 1;
    }
    next->add_up(range, sums_.at(u, range.begin), ranks_, ledger_);
    ++next;
  }
  sparse_.clear();
}

Agreement GradientReducer::finish() {
  while (!in_flight_.empty()) {
    wait_for_oldest();
  }
  records_.take(accumulated_);
  if (rounds_per_group() > 0) {
    close_group();
    accumulated_ = sums_.take_totals();
  }
  if (sums_.reads_peers()) {
    ranks_.barrier().wait();  // the others' sums are read next
  } else if (options_.zero == 0) {
    gather_whole();  // from other machines
  }
  Agreement agreement = records_.agreement();
  agreement.used.assign(accumulated_.begin(), accumulated_.end());
  return agreement;
}

void GradientReducer::reset() {
  // From the first whole step on, buckets are launched in the order in which rank 0 filled them.
  if (!learned_ && ranks_.size() > 1 && records_.agreement().given_up_rank < 0) {
    std::vector<std::int64_t> order;
    std::vector<bool> known(buckets_.size(), false);
    for (const std::size_t b : filled_) {
      if (!known[b]) {
        known[b] = true;
        order.push_back(static_cast<std::int64_t>(b));
      }
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!known[b]) {
        order.push_back(static_cast<std::int64_t>(b));
      }
    }
    ranks_.broadcast(order, 0).wait();
    order_.assign(order.begin(), order.end());
    std::vector<std::size_t> position(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      position[order_[i]] = i;
    }
    for (auto& of : buckets_of_) {
      std::sort(of.begin(), of.end(), [&](std::size_t a, std::size_t b) {
        return position[a] < position[b];
      });
    }
    learned_ = true;
  }
  if (sums_.reads_peers()) {
    released_ = ranks_.barrier();
    release_pending_ = true;
  }
  ring_.shrink();
  filled_.clear();
  std::fill(accumulated_.begin(), accumulated_.end(), 0);
  std::fill(local_.begin(), local_.end(), 0);
  sums_.reset();
  records_.reset();
  rounds_done_ = 0;
}

}  // namespace trireme::detail
