#include "number_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace trireme::bench {

std::string bytes_text(long long bytes) {
  if (bytes >= 1 << 20) {
    return std::to_string(bytes >> 20) + " MiB";
  }
  return std::to_string(bytes >> 10) + " KiB";
}

std::string number_text(double value) {
  char text[32];
  const int digits =
      value > 0 ? std::max(0, 2 - static_cast<int>(std::floor(std::log10(value)))) : 0;
  std::snprintf(text, sizeof(text), "%.*f", std::min(digits, 6), value);
  return text;
}

}  // namespace trireme::bench
