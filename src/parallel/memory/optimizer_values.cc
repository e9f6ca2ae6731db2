// What is read of masters, states and averages, and written to them, from outside of updates.

#include <cstring>

#include "parallel/memory/optimizer_memory.h"
#include "parallel/memory/runs.h"
#include "parallel/memory/unit_storage.h"
#include "trireme/comm/tell.h"
#include "trireme/shard/state_view.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

std::vector<OptimizerMemory::Kept> OptimizerMemory::kept(std::size_t parameter) const {
  const auto [u, index] = context_.plan.places[parameter];
  const Unit& unit = context_.plan.units[u];
  const Range updated = context_.plan.ownership.updated(u);
  const Range part = intersection(context_.plan.range_of(parameter), updated);
  const auto part_in = [&, first = updated.begin](const Span& whole) {
    return part_of(whole, {part.begin - first, part.end - first});
  };
  const auto in_file = [&, which = u](const std::string& kind, std::size_t array) {
    return Kept{kind,
                {nullptr, part.size(), unit.sum_dtype()},
                {},
                disk_.get(),
                part.empty() ? 0 : place(which, array, part.begin)};
  };
  std::vector<Kept> all;
  if (disk_ && has_masters(u)) {
    all.push_back(in_file(kWeightKind, units_[u].masters_array));
  } else {
    all.push_back({kWeightKind, part_in(weights(u))});
  }
  if (!unit.trainable) {
    return all;
  }
  const std::vector<OptimizerState>& states = rules_.states(parameter);
  for (std::size_t k = 0; k < states.size(); ++k) {
    const std::string kind = "optimizer." + states[k].name;
    if (disk_) {
      all.push_back(in_file(kind, units_[u].state_arrays[k]));
      continue;
    }
    const bool divided = states[k].sizes.empty();
    std::byte* data = !divided       ? rules_.whole_state(parameter, k)
                      : part.empty() ? nullptr
                                     : state(u, index, k, part.begin);
    all.push_back({kind,
                   {data,
                    divided ? part.size() : states[k].numel(),
                    unit.sum_dtype(),
                    {},
                    divided ? home_ : Device{}},
                   states[k].sizes});
  }
  if (context_.options.ema_decay > 0) {
    all.push_back(disk_ ? in_file(kAverageKind, units_[u].averages_array)
                        : Kept{kAverageKind, part_in(averages(u))});
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
  const std::int64_t updated = ownership.updated(u).size();
  device::Buffer memory;
  Span whole;
  device::Buffer part;  // this rank's, where it is not received where it stays
  Span own;
  // From the model's tensors and not from the parameters' new memory, where they are rounded.
  on_all_ranks(owners, [&] {
    const std::int64_t here = root || !divided ? numel : 0;
    memory = device::Buffer(static_cast<std::size_t>(here) * dtype_bytes(dtype));
    whole = {memory.data(), here, dtype};
    if (root) {
      flatten(unit, context_.plan.parameters, whole);  // the layout holds for any dtype
    }
    if (divided && (disk_ || !home_.is_host())) {
      part = device::Buffer(static_cast<std::size_t>(updated) * dtype_bytes(dtype));
      own = {part.data(), updated, dtype};
    } else if (!disk_) {
      own = weights(u);
    }
  });
  if (!divided) {
    owners.broadcast(whole, 0).wait();
  } else {
    owners.scatter({whole.bytes(), root ? numel : 0, dtype}, own, 0, ownership.counts(u)).wait();
  }
  const Span& here = divided ? own : whole;
  if (disk_) {
    on_all_ranks(owners, [&] {
      disk_->write(disk_->place(u, units_[u].masters_array, 0), here.bytes(), here.size_bytes());
      disk_->flush();
    });
  } else if (here.bytes() != weights(u).bytes()) {
    stream_for(weights(u)).copy(weights(u), here);
  }
  finish_work(home_);
}

void OptimizerMemory::take_averages(std::size_t u) {
  if (!context_.plan.units[u].trainable || context_.options.ema_decay == 0) {
    return;
  }
  if (!disk_) {
    stream_for(weights(u)).copy(averages(u), weights(u));
    return;
  }
  const Range updated = context_.plan.ownership.updated(u);
  device::Buffer copy;
  // Writes that are still to come are waited for by whoever calls: flush().
  for (const Range& range : ranges(u)) {
    const Span values = has_masters(u)
                            ? read_masters(u, range, copy)
                            : part_of(parameters_.owned(u),
                                      {range.begin - updated.begin, range.end - updated.begin});
    disk_->write(
        place(u, units_[u].averages_array, range.begin), values.bytes(), values.size_bytes());
  }
}

void OptimizerMemory::round_masters(std::size_t u) {
  if (context_.plan.units[u].rounding) {
    parameters_.round(
        u, context_.plan.ownership.updated(u), reinterpret_cast<const float*>(weights(u).bytes()));
  } else if (has_masters(u) && !disk_) {
    const Span parameters = parameters_.owned(u);
    stream_for(weights(u), parameters).copy(parameters, weights(u));
  } else if (has_masters(u)) {
    const Range updated = context_.plan.ownership.updated(u);
    device::Buffer copy;
    for (const Range& range : ranges(u)) {
      const Span to =
          part_of(parameters_.owned(u), {range.begin - updated.begin, range.end - updated.begin});
      stream_for(to).copy(to, read_masters(u, range, copy));
      finish_work(to.device());  // `copy` is used again
    }
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
  // In the order of memory, as all are.
  const Dtype dtype = context_.plan.units[u].sum_dtype();
  const at::Tensor exact = new_values.to(scalar_type_of(dtype));
  const std::size_t wide = dtype_bytes(dtype);
  const auto* values = static_cast<const std::byte*>(exact.const_data_ptr());
  const auto* old_bits = static_cast<const std::byte*>(old_values.const_data_ptr());
  const auto* new_bits = static_cast<const std::byte*>(new_values.const_data_ptr());
  const auto element = static_cast<std::size_t>(new_values.element_size());
  device::Buffer copy;
  const OnHost masters(read_masters(u, part, copy));
  std::byte* const first = masters.run().bytes();
  for (std::int64_t k = 0; k < part.size(); ++k) {
    const auto i = static_cast<std::size_t>(part.begin - range.begin + k);
    if (std::memcmp(old_bits + i * element, new_bits + i * element, element) != 0) {
      std::memcpy(first + static_cast<std::size_t>(k) * wide, values + i * wide, wide);
    }
  }
  masters.put_back();
  if (disk_) {
    disk_->write(place(u, units_[u].masters_array, part.begin),
                 first,
                 static_cast<std::size_t>(part.size()) * wide);
  }
}

}  // namespace trireme::detail
