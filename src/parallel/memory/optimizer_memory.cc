#include "parallel/memory/optimizer_memory.h"

#include <algorithm>
#include <cstring>

#include "parallel/memory/runs.h"
#include "trireme/core/error.h"

namespace trireme::detail {

OptimizerMemory::OptimizerMemory(const PartContext& context,
                                 const ParameterRules& rules,
                                 ParameterMemory& parameters)
    : context_(context),
      rules_(rules),
      parameters_(parameters),
      home_(context.options.offload.any() ? Device{} : context.plan.device),
      units_(context.plan.units.size()) {
  const Offload& offload = context.options.offload;
  const bool on_disk = offload.to == Offload::To::kDisk;
  if (offload.any()) {
    rules.check_one_pass();
  }
  std::vector<DiskStates::Arrays> in_file(units_.size());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = context.plan.units[u];
    if (!unit.trainable) {
      continue;
    }
    const Range updated = context.plan.ownership.updated(u);
    const std::size_t element = dtype_bytes(unit.sum_dtype());
    const auto take = [&](MemoryCategory category, std::int64_t numel) {
      const std::size_t bytes = on_disk ? 0 : static_cast<std::size_t>(numel) * element;
      units_[u].charges.push_back(context_.ledger.charge(
          home_ == context.plan.device ? category : MemoryCategory::kHost, bytes));
      return device::Buffer(bytes, home_);
    };
    units_[u].layout = rules.layout(unit, updated);
    for (const std::int64_t numel : units_[u].layout.numel) {
      units_[u].states.push_back(take(MemoryCategory::kOptimizer, numel));
    }
    if (has_masters(u)) {
      units_[u].masters = take(MemoryCategory::kOptimizer, updated.size());
    }
    if (context.options.ema_decay > 0) {
      units_[u].averages = take(MemoryCategory::kAverages, updated.size());
    }
    number_arrays(u);
    in_file[u] = {updated.size(), element, units_[u].arrays};
    for (const Range& range : ranges(u)) {
      windows_.push_back({u, range});
    }
  }
  if (on_disk) {
    disk_ = std::make_unique<DiskStates>(
        offload.folder, context.ranks.rank(), std::move(in_file), context.ledger);
  }
}

void OptimizerMemory::number_arrays(std::size_t u) {
  UnitState& unit = units_[u];
  if (has_masters(u)) {
    unit.masters_array = unit.arrays++;
  }
  for (std::size_t k = 0; k < unit.layout.numel.size(); ++k) {
    if (unit.layout.numel[k] > 0) {
      unit.state_arrays[k] = unit.arrays++;
    }
  }
  if (context_.options.ema_decay > 0) {
    unit.averages_array = unit.arrays++;
  }
}

std::vector<Range> OptimizerMemory::ranges(std::size_t unit) const {
  const Offload::To to = context_.options.offload.to;
  return to == Offload::To::kNowhere
             ? std::vector<Range>()
             : windows_of(context_.plan.ownership.updated(unit),
                          to == Offload::To::kDisk ? kDiskWindow : kHostWindow);
}

Span OptimizerMemory::run(std::size_t unit, const device::Buffer& memory) const {
  TRIREME_ASSERT(disk_ == nullptr, "states in a file were asked for as memory");
  return {memory.data(),
          context_.plan.ownership.updated(unit).size(),
          context_.plan.units[unit].sum_dtype(),
          {},
          home_};
}

Span OptimizerMemory::weights(std::size_t unit) const {
  return has_masters(unit) ? run(unit, units_[unit].masters) : parameters_.owned(unit);
}

Span OptimizerMemory::averages(std::size_t unit) const {
  return run(unit, units_[unit].averages);
}

Span OptimizerMemory::weights(std::size_t unit, const Piece& piece) const {
  if (disk_ && has_masters(unit)) {
    return {at_hand(units_[unit].masters_array, piece.offset),
            piece.numel,
            context_.plan.units[unit].sum_dtype()};
  }
  return piece_of(weights(unit), unit, piece);
}

Span OptimizerMemory::averages(std::size_t unit, const Piece& piece) const {
  if (disk_) {
    return {at_hand(units_[unit].averages_array, piece.offset),
            piece.numel,
            context_.plan.units[unit].sum_dtype()};
  }
  return piece_of(averages(unit), unit, piece);
}

Span OptimizerMemory::piece_of(const Span& run, std::size_t unit, const Piece& piece) const {
  const std::int64_t begin = piece.offset - context_.plan.ownership.updated(unit).begin;
  return part_of(run, {begin, begin + piece.numel});
}

std::byte* OptimizerMemory::at_hand(std::size_t array, std::int64_t element) const {
  const StateWindow& window = windows_[order_[turn_ - 1]];
  return disk_->array(array) + static_cast<std::size_t>(element - window.range.begin) *
                                   dtype_bytes(context_.plan.units[window.unit].sum_dtype());
}

std::byte* OptimizerMemory::state(std::size_t unit,
                                  std::size_t index,
                                  std::size_t k,
                                  std::int64_t element) const {
  const Unit& u = context_.plan.units[unit];
  const Range updated = context_.plan.ownership.updated(unit);
  const std::int64_t first = units_[unit].layout.first[index][k];
  if (first < 0) {
    return nullptr;
  }
  if (disk_) {
    return at_hand(units_[unit].state_arrays[k], element);
  }
  const std::int64_t begin = std::clamp(u.layout.offset(index), updated.begin, updated.end);
  return units_[unit].states[k].data() +
         static_cast<std::size_t>(first + element - begin) * dtype_bytes(u.sum_dtype());
}

ParameterSlice OptimizerMemory::slice(std::size_t unit,
                                      const Piece& piece,
                                      const ConstSpan& gradient,
                                      void* low) const {
  ParameterSlice slice;
  slice.device = home_;
  slice.dtype = gradient.dtype();
  slice.master = weights(unit, piece).bytes();
  slice.gradient = gradient.bytes();
  for (std::size_t k = 0; k < slice.states.size(); ++k) {
    slice.states[k] = state(unit, piece.parameter, k, piece.offset);
  }
  if (context_.plan.units[unit].narrow()) {
    slice.low = low != nullptr ? low : parameters(unit, piece).bytes();
    slice.low_dtype = context_.plan.units[unit].dtype;
  }
  slice.numel = piece.numel;
  slice.begin = piece.begin;
  slice.whole = &rules_.whole(context_.plan.parameter_of(unit, piece));
  slice.step = slice.whole->step;
  return slice;
}

// --- windows

void OptimizerMemory::begin_windows(const std::vector<std::size_t>& order) {
  order_ = order;
  turn_ = 0;
  if (disk_) {
    disk_->begin(order);
  }
}

void OptimizerMemory::next_window() {
  ++turn_;
  if (disk_) {
    disk_->next();
  }
}

void OptimizerMemory::put_back_window() {
  if (disk_) {
    disk_->put_back();
  }
}

void OptimizerMemory::finish_windows() {
  if (disk_) {
    disk_->finish();
  }
}

void OptimizerMemory::flush() {
  if (disk_) {
    disk_->flush();
  }
}

std::uint64_t OptimizerMemory::place(std::size_t unit,
                                     std::size_t array,
                                     std::int64_t element) const {
  return disk_->place(unit, array, element - context_.plan.ownership.updated(unit).begin);
}

Span OptimizerMemory::read_masters(std::size_t unit, Range range, device::Buffer& copy) const {
  const Range updated = context_.plan.ownership.updated(unit);
  if (!disk_) {
    return part_of(weights(unit), {range.begin - updated.begin, range.end - updated.begin});
  }
  const Dtype dtype = context_.plan.units[unit].sum_dtype();
  const std::size_t bytes = static_cast<std::size_t>(range.size()) * dtype_bytes(dtype);
  if (copy.size_bytes() < bytes) {
    copy = device::Buffer(bytes);
  }
  disk_->read(place(unit, units_[unit].masters_array, range.begin), copy.data(), bytes);
  return {copy.data(), range.size(), dtype};
}

void OptimizerMemory::read_averages(std::size_t unit, Range range, const Span& to) {
  if (disk_) {
    disk_->read(place(unit, units_[unit].averages_array, range.begin), to.bytes(), to.size_bytes());
    return;
  }
  const std::int64_t first = context_.plan.ownership.updated(unit).begin;
  const OnHost here(part_of(averages(unit), {range.begin - first, range.end - first}));
  if (to.numel() > 0) {
    std::memcpy(to.bytes(), here.run().bytes(), to.size_bytes());
  }
}

}  // namespace trireme::detail
