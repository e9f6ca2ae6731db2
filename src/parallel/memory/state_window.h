#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trireme/shard/range.h"

namespace trireme::detail {

// Elements of a unit that are updated together where states are not beside the parameters
// (EngineOptions::offload).
struct StateWindow {
  std::size_t unit = 0;
  Range range;
};

// At most: in a file, what a disk likes to read and write at a time; in memory, what is worth the
// waking of many threads.
inline constexpr std::int64_t kDiskWindow = 1 << 20;
inline constexpr std::int64_t kHostWindow = 1 << 23;

// Of the windows of so many elements, of equal size but for the last.
inline std::int64_t window_numel(std::int64_t numel, std::int64_t most) {
  const std::int64_t count = std::max<std::int64_t>(1, (numel + most - 1) / most);
  return std::max<std::int64_t>(1, (numel + count - 1) / count);
}

inline std::vector<Range> windows_of(Range whole, std::int64_t most) {
  std::vector<Range> windows;
  const std::int64_t numel = window_numel(whole.size(), most);
  for (std::int64_t begin = whole.begin; begin < whole.end; begin += numel) {
    windows.push_back({begin, std::min(begin + numel, whole.end)});
  }
  return windows;
}

}  // namespace trireme::detail
