#include "parallel/gradient/bucket_path.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty_strided.h>

#include "parallel/gradient/backward_mark.h"
#include "parallel/memory/runs.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

std::vector<Bucket> plan_dense_buckets(const PartContext& context) {
  std::vector<FlatLayout> layouts;
  layouts.reserve(context.plan.units.size());
  for (const Unit& unit : context.plan.units) {
    layouts.push_back(unit.trainable && !unit.sparse ? unit.layout : FlatLayout({}, unit.dtype));
  }
  const auto& compress = context.options.compress;
  return plan_buckets(
      layouts, context.options.bucket_bytes, compress ? compress->format().block : 1);
}

}  // namespace

at::Tensor in_order_of(const Parameter& parameter, Dtype dtype, const at::Tensor& gradient) {
  TRIREME_CHECK(gradient.sizes() == at::IntArrayRef(parameter.sizes),
                "the gradient of parameter {} has sizes {}, the parameter had {} when the engine "
                "was built: its shape must not change",
                {parameter.name, gradient.sizes(), at::IntArrayRef(parameter.sizes)});
  const at::ScalarType type = scalar_type_of(dtype);
  // Memory that is to be read with another sign is not what it looks like.
  if (gradient.scalar_type() == type && gradient.layout() == at::kStrided && !gradient.is_neg() &&
      (gradient.strides() == at::IntArrayRef(parameter.strides) ||
       (gradient.is_contiguous() && at::IntArrayRef(c10::contiguous_strides(parameter.sizes)) ==
                                        at::IntArrayRef(parameter.strides)))) {
    return gradient;
  }
  const at::Tensor dense = gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
  at::Tensor ordered =
      at::empty_strided(parameter.sizes,
                        parameter.strides,
                        at::TensorOptions().dtype(type).device(parameter.tensor.device()));
  ordered.copy_(dense);
  return ordered;
}

BucketPath::BucketPath(const PartContext& context, GradientSums& sums, bool launches)
    : context_(context),
      sums_(sums),
      memory_(context, sums),
      launches_(launches),
      buckets_(plan_dense_buckets(context)),
      buckets_of_(context.plan.parameters.size()),
      order_(buckets_.size()),
      filling_(buckets_.size()),
      present_(context.plan.parameters.size(), 0),
      local_(context.plan.parameters.size(), 0) {
  if (!context.plan.device.is_host()) {
    flags_ = device::Buffer::visible_to(context.plan.device,
                                        context.plan.parameters.size() * sizeof(device::NotFinite));
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (const Piece& piece : buckets_[b].pieces) {
      buckets_of_[context.plan.parameter_of(buckets_[b].unit, piece)].push_back(b);
    }
  }
}

// In the middle of a step its operations go on: the others may need them, and they keep the memory
// that they use.
BucketPath::~BucketPath() {
  for (Pending& each : pending_) {
    each.work.forget();
  }
}

void BucketPath::begin_round(const Round& round) {
  round_ = round;
  std::ranges::fill(present_, 0);
  next_ = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    filling_[b] = {};
    for (const Piece& piece : buckets_[b].pieces) {
      const std::size_t parameter = context_.plan.parameter_of(buckets_[b].unit, piece);
      filling_[b].missing += round.expected[parameter] ? piece.numel : 0;
    }
  }
}

bool BucketPath::add(std::size_t parameter, const at::Tensor& gradient) {
  const Parameter& p = context_.plan.parameters[parameter];
  const at::NoGradGuard no_grad;
  const at::Tensor ordered = in_order_of(p, context_.plan.unit_of(parameter).dtype, gradient);
  bool finite = true;
  present_[parameter] = 1;  // before a bucket with it can be launched
  for (const std::size_t b : buckets_of_[parameter]) {
    TRIREME_CHECK(!filling_[b].launched,
                  "parameter {} got a gradient that the graph of the loss does not lead to (a "
                  "backward inside of backward?): rank {} already reported that there is none",
                  {p.name, context_.ranks.rank()});
    finite &= write(parameter, b, const_run_of(ordered));
    if (filling_[b].missing == 0) {
      order_.filled(b);
    }
    while (may_launch() && next_ < order_.size() && filling_[order_[next_]].missing == 0) {
      if (!launch_next(!several_in_backward())) {  // also one that nothing will come for
        break;
      }
    }
  }
  local_[parameter] = 1;
  poll();
  return finite;
}

// The parts of a gradient that are in a bucket. True if they are finite.
bool BucketPath::write(std::size_t parameter, std::size_t b, const ConstSpan& gradient) {
  const Unit& unit = unit_of(b);
  const std::size_t index = context_.plan.places[parameter].index;
  const bool local = context_.adds_locally();
  const bool first = !local_[parameter];
  Filling& filling = open(b);
  device::Stream& stream = stream_for(gradient);
  device::NotFinite here = 0;
  device::NotFinite* const not_finite =
      gradient.device().is_host() ? &here
                                  : reinterpret_cast<device::NotFinite*>(flags_.data()) + parameter;
  for (const Piece& piece : buckets_[b].pieces) {
    if (piece.parameter != index) {
      continue;
    }
    const std::int64_t offset = piece.offset - buckets_[b].range.begin;
    const Span to = part_of(filling.memory, {offset, offset + piece.numel});
    const ConstSpan from = part_of(gradient, {piece.begin, piece.begin + piece.numel});
    if ((local && !first) || memory_.dtype(unit) != unit.dtype) {
      stream.add(to, from, first || !local);
      // The micro-batch's own gradient, as elsewhere: the sum may overflow for any world size.
      stream.check_finite(from, not_finite);
    } else {
      stream.copy(to, from, not_finite);
    }
    // One that nobody expected does not stand in for one that is still to come.
    filling.missing -= round_.expected[parameter] ? piece.numel : 0;
  }
  // A gradient on a GPU may go before it has been read: its memory is LibTorch's, which gives it
  // away in the order of the same stream.
  return here == 0;
}

std::vector<std::size_t> BucketPath::found_not_finite() {
  std::vector<std::size_t> found;
  if (!context_.plan.device.is_host()) {
    finish_work(context_.plan.device);
    auto* flags = reinterpret_cast<device::NotFinite*>(flags_.data());
    for (std::size_t p = 0; p < context_.plan.parameters.size(); ++p) {
      if (std::exchange(flags[p], 0) != 0) {
        found.push_back(p);
      }
    }
  }
  return found;
}

BucketPath::Filling& BucketPath::open(std::size_t b) {
  Filling& filling = filling_[b];
  if (!filling.open) {
    filling.open = true;
    if (memory_.space(unit_of(b)) == BucketMemory::Space::kRing) {
      filling.slot = acquire_slot();
    }
    filling.memory = memory_.run(buckets_[b], filling.slot);
  }
  return filling;
}

// Note [waiting for a slot]
// Buckets are launched in one order on all ranks, so the oldest one that this rank has launched
// needs nothing from it any more: waiting for it cannot be a circle. Where nothing has been
// launched, because gradients come in another order than expected, waiting could be one: then the
// ring grows. So it does where several engines share a backward: another rank may wait for a bucket
// of the other engine meanwhile.
int BucketPath::acquire_slot() {
  BucketRing& ring = memory_.ring();
  poll();
  const bool may_wait = !several_in_backward();
  while (may_wait && !ring.has_free() && !pending_.empty()) {
    finish_oldest();
  }
  if (ring.has_free()) {
    return ring.take();
  }
  if (may_wait && !told_of_growth_ && order_.learned()) {
    told_of_growth_ = true;
    log(LogLevel::kWarning,
        concat("rank {}: gradients arrive in an unexpected order, and more than {} buckets are "
               "half full: the memory for buckets grows (EngineOptions::bucket_count)",
               {context_.ranks.rank(), ring.size()}));
  }
  return ring.grow();
}

bool BucketPath::may_launch() const {
  return launches_ && (!context_.adds_locally() || round_.last_of_this_rank);
}

// False where that has to wait, and may not.
bool BucketPath::launch_next(bool may_wait) {
  const std::size_t b = order_[next_];
  if (!show(b, may_wait)) {
    return false;
  }
  ++next_;
  filling_[b].launched = true;
  launch({b, filling_[b].memory, filling_[b].slot, absent_ranges(buckets_[b])});
  return true;
}

// Moves a bucket to where the others see it, if it is not there. What is in the passage has been
// launched: waiting for it is no circle either, except in the middle of a backward of several
// engines; at its end, all ranks come to the same engine.
bool BucketPath::show(std::size_t b, bool may_wait) {
  Filling& filling = filling_[b];
  BucketRing& ring = memory_.ring();
  if (filling.slot < 0 || ring.is_seen(filling.slot)) {
    return true;
  }
  poll();
  while (may_wait && !ring.passage_is_free()) {
    finish_oldest();
  }
  if (!ring.passage_is_free()) {
    return false;
  }
  const Filling hidden = filling;
  filling.slot = ring.take_passage();
  filling.memory = memory_.run(buckets_[b], filling.slot);
  stream_for(filling.memory).copy(filling.memory, hidden.memory);
  ring.give_back(hidden.slot);  // on the same stream, whoever writes there comes later
  return true;
}

std::vector<Range> BucketPath::absent_ranges(const Bucket& bucket) const {
  std::vector<Range> absent;
  bool any = false;
  for (const Piece& piece : bucket.pieces) {
    const std::size_t parameter = context_.plan.parameter_of(bucket.unit, piece);
    if (present_[parameter] || (context_.adds_locally() && local_[parameter])) {
      any = true;
      continue;
    }
    const std::int64_t begin = piece.offset - bucket.range.begin;
    const Range range{begin, begin + piece.numel};
    if (!absent.empty() && !any) {
      absent.back().end = range.end;  // nothing but a gap between them
    } else {
      absent.push_back(range);
    }
    any = false;
  }
  return absent;
}

BucketPath::Ready BucketPath::with_memory(Ready ready) {
  const Filling& filling = open(ready.bucket);
  ready.memory = filling.memory;
  ready.slot = filling.slot;
  return ready;
}

void BucketPath::give_back(const Ready& ready) {
  if (ready.slot >= 0) {
    memory_.ring().give_back(ready.slot);
  }
}

void BucketPath::begun(const Ready& ready, Work work) {
  pending_.push_back({ready.bucket, ready.memory, ready.slot, std::move(work)});
}

void BucketPath::poll() {
  while (!pending_.empty() && pending_.front().work.done()) {
    finish_oldest();
  }
}

void BucketPath::finish_oldest() {
  Pending& oldest = pending_.front();
  oldest.work.wait();
  finished(oldest.bucket, oldest.memory);
  give_back({.bucket = oldest.bucket, .slot = oldest.slot});
  pending_.pop_front();
}

void BucketPath::end_round(bool /*given_up*/) {
  while (may_launch() && next_ < order_.size()) {
    launch_next(/*may_wait=*/true);  // what has not come by now is absent
  }
}

void BucketPath::finish() {
  while (!pending_.empty()) {
    finish_oldest();
  }
}

void BucketPath::forget_local() {
  std::ranges::fill(local_, 0);
}

void BucketPath::end_step(StepOutcome outcome) {
  if (outcome != StepOutcome::kGivenUp && order_.learn(context_.ranks)) {
    const std::vector<std::size_t> position = order_.positions();
    for (auto& of : buckets_of_) {
      std::ranges::sort(of,
                        [&](std::size_t a, std::size_t b) { return position[a] < position[b]; });
    }
  }
  memory_.ring().shrink();
  order_.forget_filled();
  forget_local();
}

}  // namespace trireme::detail
