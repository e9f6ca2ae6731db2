#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

// A half-open run of elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool operator==(const Range&) const = default;
};

// What both have; empty where they have nothing in common.
Range intersection(Range a, Range b);

// Ranges that are in all of `lists`, each of which ascends.
std::vector<Range> common_ranges(std::span<const std::span<const Range>> lists);

// The part of [0, numel) that belongs to `rank` of `world`: contiguous, in rank order, covering
// every element once; sizes differ by at most one element, larger ones first, so that no padding
// is ever needed. This is the default split of every collective.
Range even_range(std::int64_t numel, int world, int rank);

// The sizes of even_range for every rank.
std::vector<std::int64_t> even_counts(std::int64_t numel, int world);

}  // namespace trireme
