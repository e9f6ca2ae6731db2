#include "trireme/shard/bucket_plan.h"

#include <algorithm>

namespace trireme {
namespace {

// More would not fit into one call of a collective when every second one is unused.
constexpr std::size_t kMaxPieces = 1000;

// The first block that begins at `least` or later, and before `stop`: at least one is taken.
std::int64_t block_begin(std::int64_t least, std::int64_t stop, std::int64_t block) {
  const std::int64_t first = least <= 0 ? 0 : (least + block - 1) / block * block;
  return first < stop ? first : (stop - 1) / block * block;
}

}  // namespace

std::vector<Bucket> plan_buckets(const std::vector<FlatLayout>& units,
                                 std::size_t bucket_bytes,
                                 std::int64_t block) {
  std::vector<Bucket> buckets;
  for (std::size_t unit = units.size(); unit-- > 0;) {
    const FlatLayout& layout = units[unit];
    const std::size_t element = dtype_bytes(layout.dtype());
    const auto line = static_cast<std::int64_t>(FlatLayout::kAlignmentBytes / element);
    const std::int64_t capacity =
        std::max(line, static_cast<std::int64_t>(bucket_bytes / element) / line * line);
    // Whole parameters while they fit; one that is larger than a bucket is cut on its own.
    std::size_t last = layout.count();
    while (last > 0) {
      const std::int64_t end = last == layout.count() ? layout.total_numel() : layout.offset(last);
      std::size_t first = last - 1;
      while (first > 0 && last - first < kMaxPieces && end - layout.offset(first - 1) <= capacity) {
        --first;
      }
      const std::int64_t offset = layout.offset(first);
      for (std::int64_t stop = end; stop > offset;) {
        const std::int64_t begin =
            block_begin(stop - capacity - offset, stop - offset, block) + offset;
        buckets.push_back({unit, {begin, stop}, layout.pieces({begin, stop})});
        stop = begin;
      }
      last = first;
    }
  }
  return buckets;
}

}  // namespace trireme
