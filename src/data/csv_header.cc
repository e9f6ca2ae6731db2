#include "data/csv_header.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "data/text_lines.h"

namespace trireme::detail {
namespace {

// A name, and neither a number with a typing error in it ("1.5x") nor a word for a missing one.
bool is_word(const std::string& cell) {
  constexpr std::array<std::string_view, 7> kMissing = {
      "na", "nan", "null", "none", "inf", "infinity", "missing"};
  std::string lower = cell;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  if (cell.empty() || std::find(kMissing.begin(), kMissing.end(), lower) != kMissing.end()) {
    return false;
  }
  const auto first = static_cast<unsigned char>(cell[0]);
  return std::isalpha(first) != 0 || first == '_' || first >= 0x80;
}

}  // namespace

bool looks_like_names(const std::vector<std::string>& first_line,
                      std::int64_t target,
                      bool regression) {
  if (target < 0 || std::none_of(first_line.begin(), first_line.end(), [](const auto& cell) {
        return parse_number(cell).has_value();
      })) {
    return true;
  }
  for (std::size_t column = 0; column < first_line.size(); ++column) {
    const bool value = regression || static_cast<std::int64_t>(column) != target;
    if (value && is_word(first_line[column])) {
      return true;
    }
  }
  return false;
}

bool may_be_names(const std::vector<std::int32_t>& labels) {
  if (labels.empty()) {
    return false;
  }
  std::vector<std::int64_t> counts(
      static_cast<std::size_t>(*std::max_element(labels.begin(), labels.end())) + 1, 0);
  for (const std::int32_t label : labels) {
    ++counts[static_cast<std::size_t>(label)];
  }
  std::int64_t& own = counts[static_cast<std::size_t>(labels.front())];
  if (own != 1 || counts.size() == 1) {
    return false;
  }
  own = 2;
  return std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count >= 2; });
}

}  // namespace trireme::detail
