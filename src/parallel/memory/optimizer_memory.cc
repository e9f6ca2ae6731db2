#include "parallel/memory/optimizer_memory.h"

#include <algorithm>
#include <cstring>

#include "parallel/memory/runs.h"
#include "parallel/memory/unit_storage.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {
OptimizerMemory::OptimizerMemory(const PartContext& context,
                                 const ParameterRules& rules,
                                 ParameterMemory& parameters)
    : context_(context), rules_(rules), parameters_(parameters), units_(context.plan.units.size()) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = context.plan.units[u];
    if (!unit.trainable) {
      continue;
    }
    const Range updated = context.plan.ownership.updated(u);
    const auto take = [&](MemoryCategory category, std::int64_t numel) {
      const std::size_t bytes = static_cast<std::size_t>(numel) * dtype_bytes(unit.sum_dtype());
      units_[u].charges.push_back(context_.ledger.charge(category, bytes));
      return device::Buffer(bytes, context_.plan.device);
    };
    units_[u].layout = rules.layout(unit, updated);
    for (const std::int64_t numel : units_[u].layout.numel) {
      units_[u].states.push_back(take(MemoryCategory::kOptimizer, numel));
    }
    if (unit.has_masters()) {
      units_[u].masters = take(MemoryCategory::kOptimizer, updated.size());
    }
    if (context.options.ema_decay > 0) {
      units_[u].averages = take(MemoryCategory::kAverages, updated.size());
    }
  }
}

Span OptimizerMemory::run(std::size_t unit, const device::Buffer& memory) const {
  return {memory.data(),
          context_.plan.ownership.updated(unit).size(),
          context_.plan.units[unit].sum_dtype(),
          {},
          context_.plan.device};
}

Span OptimizerMemory::weights(std::size_t unit) const {
  return has_masters(unit) ? run(unit, units_[unit].masters) : parameters_.owned(unit);
}

Span OptimizerMemory::averages(std::size_t unit) const {
  return run(unit, units_[unit].averages);
}

Span OptimizerMemory::piece_of(const Span& run, std::size_t unit, const Piece& piece) const {
  const std::int64_t begin = piece.offset - context_.plan.ownership.updated(unit).begin;
  return part_of(run, {begin, begin + piece.numel});
}

std::byte* OptimizerMemory::state(std::size_t unit,
                                  std::size_t index,
                                  std::size_t k,
                                  std::int64_t element) const {
  const Unit& u = context_.plan.units[unit];
  const Range updated = context_.plan.ownership.updated(unit);
  const std::int64_t first = units_[unit].layout.first[index][k];
  const std::int64_t begin = std::clamp(u.layout.offset(index), updated.begin, updated.end);
  return first < 0
             ? nullptr
             : units_[unit].states[k].data() +
                   static_cast<std::size_t>(first + element - begin) * dtype_bytes(u.sum_dtype());
}

ParameterSlice OptimizerMemory::slice(std::size_t unit,
                                      const Piece& piece,
                                      const ConstSpan& gradient) const {
  ParameterSlice slice;
  slice.device = context_.plan.device;
  slice.dtype = gradient.dtype();
  slice.master = piece_of(weights(unit), unit, piece).bytes();
  slice.gradient = gradient.bytes();
  for (std::size_t k = 0; k < slice.states.size(); ++k) {
    slice.states[k] = state(unit, piece.parameter, k, piece.offset);
  }
  if (context_.plan.units[unit].narrow()) {
    slice.low = piece_of(parameters_.owned(unit), unit, piece).bytes();
    slice.low_dtype = context_.plan.units[unit].dtype;
  }
  slice.numel = piece.numel;
  slice.begin = piece.begin;
  slice.whole = &rules_.whole(context_.plan.parameter_of(unit, piece));
  slice.step = slice.whole->step;
  return slice;
}

std::vector<OptimizerMemory::Kept> OptimizerMemory::kept(std::size_t parameter) const {
  const auto [u, index] = context_.plan.places[parameter];
  const Unit& unit = context_.plan.units[u];
  const Range updated = context_.plan.ownership.updated(u);
  const Range part = intersection(context_.plan.range_of(parameter), updated);
  const auto part_in = [&, first = updated.begin](const Span& whole) {
    return part_of(whole, {part.begin - first, part.end - first});
  };
  std::vector<Kept> all = {{kWeightKind, part_in(weights(u))}};
  if (!unit.trainable) {
    return all;
  }
  const std::vector<OptimizerState>& states = rules_.states(parameter);
  for (std::size_t k = 0; k < states.size(); ++k) {
    const bool divided = states[k].sizes.empty();
    std::byte* data = !divided       ? rules_.whole_state(parameter, k)
                      : part.empty() ? nullptr
                                     : state(u, index, k, part.begin);
    all.push_back({"optimizer." + states[k].name,
                   {data,
                    divided ? part.size() : states[k].numel(),
                    unit.sum_dtype(),
                    {},
                    divided ? context_.plan.device : Device{}},
                   states[k].sizes});
  }
  if (context_.options.ema_decay > 0) {
    all.push_back({kAverageKind, part_in(averages(u))});
  }
  return all;
}

void OptimizerMemory::take_masters(std::size_t u) {
  if (!has_masters(u)) {
    return;
  }
  const Unit& unit = context_.plan.units[u];
  const std::int64_t numel = unit.layout.total_numel();
  const Dtype dtype = unit.sum_dtype();
  const Ownership& ownership = context_.plan.ownership;
  Communicator& owners = context_.owners;
  const bool root = owners.rank() == 0;
  const bool divided = ownership.divides_states();
  device::Buffer memory;
  Span whole;
  // From the model's tensors and not from the parameters' new memory, where they are rounded.
  on_all_ranks(owners, [&] {
    const std::int64_t here = root || !divided ? numel : 0;
    memory = device::Buffer(static_cast<std::size_t>(here) * dtype_bytes(dtype));
    whole = {memory.data(), here, dtype};
    if (root) {
      flatten(unit, context_.plan.parameters, whole);  // the layout holds for any dtype
    }
  });
  const Span own = weights(u);
  if (!divided) {
    owners.broadcast(whole, 0).wait();
    stream_for(own).copy(own, whole);
  } else if (own.device().is_host()) {
    owners.scatter({whole.bytes(), root ? numel : 0, dtype}, own, 0, ownership.counts(u)).wait();
  } else {
    const device::Buffer part(own.size_bytes());
    const Span here(part.data(), own.numel(), dtype);
    owners.scatter({whole.bytes(), root ? numel : 0, dtype}, here, 0, ownership.counts(u)).wait();
    stream_for(own).copy(own, here);
  }
  finish_work(own.device());
}

void OptimizerMemory::take_averages(std::size_t u) {
  if (context_.plan.units[u].trainable && context_.options.ema_decay > 0) {
    stream_for(weights(u)).copy(averages(u), weights(u));
  }
}

void OptimizerMemory::round_masters(std::size_t u) {
  if (context_.plan.units[u].rounding) {
    parameters_.round(
        u, context_.plan.ownership.updated(u), reinterpret_cast<const float*>(weights(u).bytes()));
  } else if (has_masters(u)) {
    stream_for(weights(u)).copy(parameters_.owned(u), weights(u));
  }
}

void OptimizerMemory::round(std::size_t u, const Piece& piece) const {
  parameters_.round(u,
                    {piece.offset, piece.offset + piece.numel},
                    reinterpret_cast<const float*>(piece_of(weights(u), u, piece).bytes()));
}

void OptimizerMemory::parameter_changed(std::size_t parameter,
                                        const at::Tensor& before,
                                        const at::Tensor& now) {
  const std::size_t u = context_.plan.places[parameter].unit;
  const Range range = context_.plan.range_of(parameter);
  const Range updated = context_.plan.ownership.updated(u);
  const Range part = intersection(range, updated);
  if (!has_masters(u) || part.empty()) {
    return;
  }
  const at::Tensor old_values = before.cpu();
  const at::Tensor new_values = now.cpu();
  const at::Tensor exact = new_values.to(at::kFloat);  // in the order of memory, as all are
  const auto* values = static_cast<const float*>(exact.const_data_ptr());
  const auto* old_bits = static_cast<const std::byte*>(old_values.const_data_ptr());
  const auto* new_bits = static_cast<const std::byte*>(new_values.const_data_ptr());
  const auto element = new_values.element_size();
  const OnHost masters(part_of(weights(u), {part.begin - updated.begin, part.end - updated.begin}));
  auto* first = reinterpret_cast<float*>(masters.run().bytes());
  for (std::int64_t i = part.begin - range.begin; i < part.end - range.begin; ++i) {
    if (std::memcmp(old_bits + i * element, new_bits + i * element, element) != 0) {
      first[i - (part.begin - range.begin)] = values[i];
    }
  }
  masters.put_back();
}

}  // namespace trireme::detail
