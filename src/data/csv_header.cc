#include "data/csv_header.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "data/text_lines.h"

namespace trireme::detail {

bool is_csv_word(const std::string& cell) {
  constexpr std::array<std::string_view, 7> kMissing = {
      "na", "nan", "null", "none", "inf", "infinity", "missing"};
  std::string lower = cell;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  if (cell.empty() || std::ranges::find(kMissing, lower) != kMissing.end()) {
    return false;
  }
  const auto first = static_cast<unsigned char>(cell[0]);
  return std::isalpha(first) != 0 || first == '_' || first >= 0x80;
}

bool looks_like_names(const std::vector<std::string>& first_line,
                      std::int64_t target,
                      bool regression,
                      const MissingValues& missing,
                      const std::vector<std::int64_t>& categorical) {
  const bool words_only = std::ranges::none_of(
      first_line, [](const auto& cell) { return parse_number(cell).has_value(); });
  bool some_there = false;  // a row that misses all its values has no number in it, either
  bool word_for_value = false;
  for (std::size_t i = 0; i < first_line.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i);
    if ((column == target && !regression) || missing.contain(first_line[i])) {
      continue;
    }
    some_there = true;
    const bool word_or_number = std::ranges::find(categorical, column) != categorical.end();
    word_for_value = word_for_value || (!word_or_number && is_csv_word(first_line[i]));
  }
  return target < 0 || word_for_value || (words_only && some_there && categorical.empty());
}

bool may_be_names(const std::vector<std::int32_t>& labels) {
  if (labels.empty()) {
    return false;
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(*std::ranges::max_element(labels)) + 1,
                                   0);
  for (const std::int32_t label : labels) {
    ++counts[static_cast<std::size_t>(label)];
  }
  std::int64_t& own = counts[static_cast<std::size_t>(labels.front())];
  if (own != 1 || counts.size() == 1) {
    return false;
  }
  own = 2;
  return std::ranges::all_of(counts, [](std::int64_t count) { return count >= 2; });
}

}  // namespace trireme::detail
