#include "trireme/shard/range.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme {

Range intersection(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range even_range(std::int64_t numel, int world, int rank) {
  TRIREME_CHECK(numel >= 0, "a number of elements cannot be negative, found ", numel);
  TRIREME_CHECK(world > 0, "a world has at least one rank, found ", world);
  TRIREME_CHECK(rank >= 0 && rank < world, "rank ", rank, " is outside a world of ", world);
  const std::int64_t base = numel / world;
  const std::int64_t larger = numel % world;
  const std::int64_t begin = base * rank + std::min<std::int64_t>(rank, larger);
  return {begin, begin + base + (rank < larger ? 1 : 0)};
}

std::vector<std::int64_t> even_counts(std::int64_t numel, int world) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    counts[static_cast<std::size_t>(rank)] = even_range(numel, world, rank).size();
  }
  return counts;
}

std::vector<Range> common_ranges(std::span<const std::span<const Range>> lists) {
  std::vector<Range> common;
  if (lists.empty()) {
    return common;
  }
  common.assign(lists.front().begin(), lists.front().end());
  for (const auto& list : lists.subspan(1)) {
    std::vector<Range> both;
    auto a = common.begin();
    auto b = list.begin();
    while (a != common.end() && b != list.end()) {
      const Range shared = intersection(*a, *b);
      if (!shared.empty()) {
        both.push_back(shared);
      }
      if (a->end < b->end) {
        ++a;
      } else {
        ++b;
      }
    }
    common = std::move(both);
  }
  return common;
}

}  // namespace trireme
