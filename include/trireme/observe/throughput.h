#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// Of a run with so many steps, the first that do not count for its throughput: they allocate memory
// and find cold caches.
inline std::int64_t untimed_steps(std::int64_t steps) {
  return std::max<std::int64_t>(1, steps / 10);
}

}  // namespace trireme
