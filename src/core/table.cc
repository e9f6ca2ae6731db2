#include "trireme/core/table.h"

#include <algorithm>

namespace trireme {

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

}  // namespace trireme
