#include "doctor/quantity.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "trireme/core/printed.h"

namespace trireme::detail {

std::string number_text(double value) {
  const double size = std::abs(value);
  const int digits = size > 0 ? 2 - static_cast<int>(std::floor(std::log10(size))) : 0;
  return printed("%.*f", std::clamp(digits, 0, 9), value);
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
