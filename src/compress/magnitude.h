#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace trireme::detail {

// The largest magnitude; infinite or not a number where an element is. By their bits, magnitudes
// are in the order of integers, which compilers compare many at a time.
inline float largest_magnitude(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU);
  }
  return std::bit_cast<float>(largest);
}

}  // namespace trireme::detail
