#include "doctor/quantity.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace trireme::detail {

std::string number_text(double value) {
  char text[64];
  const double size = std::abs(value);
  const int digits = size > 0 ? 2 - static_cast<int>(std::floor(std::log10(size))) : 0;
  std::snprintf(text, sizeof(text), "%.*f", std::clamp(digits, 0, 9), value);
  return text;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return (unit == 0 ? std::to_string(bytes) : number_text(value)) + " " + kUnits[unit];
}

}  // namespace trireme::detail
