#include "trireme/shard/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/core/error.h"

namespace trireme {
namespace {

std::int64_t alignment_of(const FlatLayout& layout) {
  return static_cast<std::int64_t>(FlatLayout::kAlignmentBytes / dtype_bytes(layout.dtype()));
}

void check_world(int world) {
  TRIREME_CHECK(world > 0, "a world has at least one rank, found ", world);
}

// Ranges between cuts, which are made to rise.
std::vector<Range> ranges_between(std::vector<std::int64_t> cuts, std::int64_t total) {
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  cuts.push_back(total);
  for (const std::int64_t cut : cuts) {
    const std::int64_t end = std::clamp(cut, begin, total);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

// True when the parameters fit into `world` contiguous groups of at most `limit` elements.
bool fits(const FlatLayout& layout,
          int world,
          std::int64_t limit,
          std::vector<std::int64_t>* cuts) {
  cuts->clear();
  std::int64_t begin = 0;
  for (std::size_t parameter = 0; parameter < layout.count(); ++parameter) {
    const std::int64_t end =
        parameter + 1 < layout.count() ? layout.offset(parameter + 1) : layout.total_numel();
    if (end - layout.offset(parameter) > limit) {
      return false;
    }
    if (end - begin > limit) {
      begin = layout.offset(parameter);
      cuts->push_back(begin);
    }
  }
  return static_cast<int>(cuts->size()) < world;
}

}  // namespace

std::vector<Range> partition_by_element(const FlatLayout& layout, int world) {
  check_world(world);
  const std::int64_t alignment = alignment_of(layout);
  std::vector<Range> ranges;
  for (int rank = 0; rank < world; ++rank) {
    // Even in units of cache lines; the total is a whole number of them.
    const Range lines = even_range(layout.total_numel() / alignment, world, rank);
    ranges.push_back({lines.begin * alignment, lines.end * alignment});
  }
  return ranges;
}

std::vector<Range> partition_by_weight(const FlatLayout& layout,
                                       const std::vector<double>& weights) {
  check_world(static_cast<int>(weights.size()));
  for (const double weight : weights) {
    TRIREME_CHECK(
        std::isfinite(weight) && weight >= 0, "weights cannot be negative, found ", weight);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  TRIREME_CHECK(sum > 0, "at least one rank needs a weight above 0");
  const std::int64_t alignment = alignment_of(layout);
  const std::int64_t line_count = layout.total_numel() / alignment;
  const auto lines = static_cast<double>(line_count);
  std::vector<std::int64_t> cuts;
  double passed = 0;
  for (std::size_t rank = 0; rank + 1 < weights.size(); ++rank) {
    passed += weights[rank];
    cuts.push_back(static_cast<std::int64_t>(std::llround(passed / sum * lines)) * alignment);
  }
  return ranges_between(std::move(cuts), layout.total_numel());
}

std::vector<Range> partition_by_layer(const FlatLayout& layout, int world) {
  check_world(world);
  // The smallest limit that fits, by bisection; each test is one walk over the parameters.
  std::vector<std::int64_t> cuts;
  std::int64_t low = 0;
  std::int64_t high = layout.total_numel();
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (fits(layout, world, middle, &cuts)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  fits(layout, world, high, &cuts);
  cuts.resize(static_cast<std::size_t>(world) - 1, layout.total_numel());
  return ranges_between(std::move(cuts), layout.total_numel());
}

std::vector<Range> moved_to_rows(const FlatLayout& layout,
                                 const std::vector<Range>& ranges,
                                 const std::vector<std::int64_t>& row_numels) {
  TRIREME_CHECK(row_numels.size() == layout.count(),
                "partition by dimension needs the row length of {} parameters, found {}",
                {layout.count(), row_numels.size()});
  const std::int64_t alignment = alignment_of(layout);
  std::vector<std::int64_t> cuts;
  for (const Range& range : ranges) {
    if (range.end == layout.total_numel()) {
      break;
    }
    std::int64_t cut = range.end;
    for (const Piece& piece :
         layout.pieces({range.end, std::min(range.end + 1, layout.total_numel())})) {
      const std::int64_t row = std::max<std::int64_t>(1, row_numels[piece.parameter]);
      const std::int64_t rows = (piece.begin + row / 2) / row;  // the nearest boundary between rows
      const std::int64_t inside = std::min(rows * row, layout.numel(piece.parameter));
      cut = layout.offset(piece.parameter) + (inside + alignment - 1) / alignment * alignment;
    }
    cuts.push_back(cut);
  }
  cuts.resize(ranges.size() - 1, layout.total_numel());
  return ranges_between(std::move(cuts), layout.total_numel());
}

std::vector<Range> partition_by_dimension(const FlatLayout& layout,
                                          const std::vector<std::int64_t>& row_numels,
                                          int world) {
  return moved_to_rows(layout, partition_by_element(layout, world), row_numels);
}

}  // namespace trireme
