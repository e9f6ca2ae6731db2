#include "average/flat_state.h"

#include <algorithm>
#include <cstring>

namespace trireme::detail {

FlatState::FlatState(const StateView& view, Dtype dtype, const Choice& chosen) : dtype_(dtype) {
  for (const StateSlice& slice : view.slices) {
    const StateTensor& tensor = view.tensors[slice.tensor];
    if (tensor.dtype == dtype && !slice.range.empty() && chosen(tensor)) {
      parts_.push_back({numel_, slice});
      numel_ += slice.range.size();
    }
  }
}

std::vector<StateSlice> FlatState::slices(Range range) const {
  std::vector<StateSlice> found;
  auto part = std::ranges::upper_bound(parts_, range.begin, {}, &Part::begin);
  part -= part == parts_.begin() ? 0 : 1;
  for (; part != parts_.end() && part->begin < range.end; ++part) {
    const Range here = intersection(range, {part->begin, part->begin + part->slice.range.size()});
    if (!here.empty()) {
      const std::int64_t first = here.begin - part->begin;
      found.push_back(
          {part->slice.tensor,
           {part->slice.range.begin + first, part->slice.range.begin + first + here.size()},
           part->slice.data + size_of(first) * dtype_bytes(dtype_)});
    }
  }
  return found;
}

void FlatState::read(Range range, std::byte* to) const {
  for (const StateSlice& slice : slices(range)) {
    const std::size_t bytes = size_of(slice.range.size()) * dtype_bytes(dtype_);
    std::memcpy(to, slice.data, bytes);
    to += bytes;
  }
}

void FlatState::write(Range range, const std::byte* from) const {
  for (const StateSlice& slice : slices(range)) {
    const std::size_t bytes = size_of(slice.range.size()) * dtype_bytes(dtype_);
    std::memcpy(slice.data, from, bytes);
    from += bytes;
  }
}

}  // namespace trireme::detail
