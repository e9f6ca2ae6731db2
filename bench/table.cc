#include "table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace trireme::bench {

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string result;
  for (const auto& row : rows_) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      const std::string gap(widths[column] - row[column].size(), ' ');
      result += column == 0 ? row[column] + gap : "  " + gap + row[column];
    }
    result += '\n';
  }
  return result;
}

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
