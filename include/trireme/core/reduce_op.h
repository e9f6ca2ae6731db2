#pragma once

#include <cstdint>

namespace trireme {

// How reductions combine the ranks' elements, always as one chain in rank order,
// ((x[0] + x[1]) + x[2]) + ..., so that the bits depend on nothing but the inputs. 16-bit floats
// combine in float32 and round once. Integer sums wrap; NaN wins every minimum and maximum.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAverage = 1,  // the sum, then one true division; integers divide in 64 bits and truncate
  kMin = 2,
  kMax = 3,
};

}  // namespace trireme
