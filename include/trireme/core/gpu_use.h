#pragma once

#include <cstdint>

namespace trireme {

// What the GPUs of a machine's ranks report of themselves: the mean, the most of one, the highest,
// and the sum.
struct GpuUse {
  double busy_percent = 0;        // of the time in which a kernel ran, lately
  std::int64_t memory_bytes = 0;  // taken, by whoever
  double temperature = 0;         // in degrees Celsius
  double watts = 0;
};

}  // namespace trireme
