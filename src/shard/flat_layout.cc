#include "trireme/shard/flat_layout.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme {

FlatLayout::FlatLayout(const std::vector<std::int64_t>& numels, Dtype dtype)
    : dtype_(dtype), numels_(numels) {
  const auto alignment = static_cast<std::int64_t>(kAlignmentBytes / dtype_bytes(dtype));
  for (const std::int64_t numel : numels) {
    TRIREME_CHECK(numel >= 0, "a parameter cannot have ", numel, " elements");
    offsets_.push_back(total_numel_);
    parameters_numel_ += numel;
    total_numel_ += (numel + alignment - 1) / alignment * alignment;
  }
}

std::vector<Piece> FlatLayout::pieces(Range range) const {
  TRIREME_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= total_numel_,
                "elements {} to {} are not inside a flat buffer of {}",
                {range.begin, range.end, total_numel_});
  std::vector<Piece> found;
  // The first parameter that may reach into the range: the last that begins at or before it.
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), range.begin);
  auto parameter =
      static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - offsets_.begin() - 1, 0));
  for (; parameter < count() && offsets_[parameter] < range.end; ++parameter) {
    const std::int64_t begin = std::max(range.begin, offsets_[parameter]);
    const std::int64_t end = std::min(range.end, offsets_[parameter] + numels_[parameter]);
    if (begin < end) {
      found.push_back({parameter, begin - offsets_[parameter], end - begin, begin});
    }
  }
  return found;
}

}  // namespace trireme
