#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace trireme::detail {

// What std::printf would print, up to 127 characters.
template <class... Values>
std::string printed(const char* pattern, Values... values) {
  char text[128];
  std::snprintf(text, sizeof(text), pattern, values...);
  return text;
}

// "4.2", "170": what a single measurement of a ratio is worth.
inline std::string rough_ratio(double ratio) {
  if (!(ratio >= 10)) {
    return printed("%.1f", ratio);
  }
  const double unit = std::pow(10, std::floor(std::log10(ratio)) - 1);
  return printed("%.0f", std::round(ratio / unit) * unit);
}

}  // namespace trireme::detail
