#include "parallel/gradient/residuals.h"

#include <algorithm>

#include "trireme/core/concat.h"

namespace trireme::detail {

Residuals::Residuals(const PartContext& context,
                     const Compressor::Format& format,
                     std::vector<char> kept,
                     const SumBlocks* sums)
    : context_(context),
      format_(format),
      kept_(std::move(kept)),
      of_sums_(sums != nullptr),
      sums_(context.plan.units.size()) {
  if (!format_.feedback) {
    return;
  }
  const EngineOptions& options = context.options;
  const int size = context.ranks.size();
  // Where ranks add up their own first, what they have added up is encoded once.
  micro_batches_ = context.adds_locally()      ? size
                   : options.micro_batches > 0 ? options.micro_batches
                                               : options.accumulate * size;
  for (std::int64_t number = context.ranks.rank(); number < micro_batches_; number += size) {
    slots_.push_back({std::vector<Kept>(sums_.size()), std::vector<Kept>(sums_.size())});
  }
  for (std::size_t u = 0; u < sums_.size(); ++u) {
    const Unit& unit = context.plan.units[u];
    if (std::ranges::none_of(unit.parameters, [&](std::size_t p) { return kept_[p] != 0; })) {
      continue;
    }
    if (of_sums_) {
      make(sums_, u, sums->held(u));
    }
    for (Slot& slot : slots_) {
      make(slot.rest, u, {0, unit.layout.total_numel()});
      if (format_.momentum > 0) {
        make(slot.velocity, u, {0, unit.layout.total_numel()});
      }
    }
  }
}

void Residuals::make(std::vector<Kept>& kept, std::size_t unit, Range range) {
  const auto numel = static_cast<std::size_t>(range.size());
  charges_.push_back(context_.ledger.charge(MemoryCategory::kBuckets, 2 * numel * sizeof(float)));
  kept[unit] = {range.begin, std::vector<float>(numel), std::vector<float>(numel)};
}

Carry Residuals::Kept::from(std::int64_t element) {
  return before.empty() ? Carry{} : Carry{before.data(), after.data()}.from(element - first);
}

BlockCoder::Carried Residuals::of_term(std::int64_t round, std::size_t unit, std::int64_t element) {
  // A process alone counts rounds also where it adds up their gradients first.
  const auto number = static_cast<std::size_t>(context_.adds_locally() ? 0 : round);
  if (number >= slots_.size()) {
    return {};
  }
  Slot& slot = slots_[number];
  return {slot.rest[unit].from(element), slot.velocity[unit].from(element)};
}

BlockCoder::Carried Residuals::of_sum(std::size_t unit, std::int64_t element) {
  return {sums_[unit].from(element), {}};
}

void Residuals::keep() {
  const auto take = [](std::vector<Kept>& all) {
    for (Kept& kept : all) {
      std::swap(kept.before, kept.after);
    }
  };
  take(sums_);
  for (Slot& slot : slots_) {
    take(slot.rest);
    take(slot.velocity);
  }
}

void Residuals::append(StateView& view,
                       const std::string& kind,
                       std::vector<Kept>* kept,
                       bool sums,
                       bool saved) const {
  for (std::size_t p = 0; p < context_.plan.parameters.size(); ++p) {
    const Parameter& parameter = context_.plan.parameters[p];
    const std::size_t u = context_.plan.places[p].unit;
    if (!kept_[p]) {
      continue;
    }
    const bool rows = parameter.strides == row_strides(parameter.sizes);
    view.tensors.push_back({kind,
                            parameter.name,
                            Dtype::kFloat32,
                            parameter.sizes,
                            rows ? std::vector<std::int64_t>() : parameter.strides});
    if (kept == nullptr) {
      continue;
    }
    Kept& own = (*kept)[u];
    const Range whole = context_.plan.range_of(p);
    Range part =
        intersection(whole, {own.first, own.first + static_cast<std::int64_t>(own.before.size())});
    if (sums && saved) {
      part = intersection(part, context_.plan.ownership.saved(u));
    }
    if (!part.empty()) {
      view.slices.push_back(
          {view.tensors.size() - 1,
           {part.begin - whole.begin, part.end - whole.begin},
           reinterpret_cast<std::byte*>(own.before.data() + (part.begin - own.first))});
    }
  }
}

void Residuals::describe(StateView& view, bool saved) {
  if (!format_.feedback) {
    return;
  }
  for (std::int64_t number = 0; number < micro_batches_; ++number) {
    Slot* slot = number % context_.ranks.size() == context_.ranks.rank()
                     ? &slots_[static_cast<std::size_t>(number / context_.ranks.size())]
                     : nullptr;
    append(view, concat("residual.", number), slot ? &slot->rest : nullptr, false, saved);
    if (format_.momentum > 0) {
      append(view, concat("velocity.", number), slot ? &slot->velocity : nullptr, false, saved);
    }
  }
  if (of_sums_) {
    append(view, "residual.sum", &sums_, true, saved);
  }
}

}  // namespace trireme::detail
