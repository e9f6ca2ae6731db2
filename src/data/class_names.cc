#include "data/class_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "data/text_lines.h"

namespace trireme::detail {
namespace {

using NumberText = std::array<char, 32>;

// Whether it is written as 0, and not only too small for a double, as 1e-400 is.
bool is_written_zero(std::string_view number) {
  return number.substr(0, number.find_first_of("eE")).find_first_of("123456789") ==
         std::string_view::npos;
}

// One spelling for all that mean one number, in `buffer`; other words as they are. Numbers that
// double does not hold exactly stay words, so that long identifiers are not merged.
std::string_view one_spelling(std::string_view word, NumberText& buffer) {
  constexpr double kLargestExact = 9007199254740992.0;  // 2^53
  const auto value = parse_number(word);
  if (!value || std::abs(*value) >= kLargestExact || (*value == 0 && !is_written_zero(word))) {
    return word;
  }
  const double plain = *value == 0 ? 0 : *value;  // -0 is 0
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), plain);
  return {buffer.data(), static_cast<std::size_t>(end - buffer.data())};
}

}  // namespace

ClassNames::ClassNames(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    add(word);
  }
}

std::int32_t ClassNames::add(std::string_view word) {
  NumberText buffer;
  const std::string_view spelling = one_spelling(word, buffer);
  if (const auto known = numbers_.find(spelling); known != numbers_.end()) {
    return known->second;
  }
  const auto number = static_cast<std::int32_t>(words_.size());
  words_.emplace_back(word);
  numbers_.emplace(spelling, number);
  return number;
}

std::vector<std::int32_t> ClassNames::classes_in_order() {
  std::vector<std::optional<double>> values;
  std::vector<std::string> spellings;  // numbers among words: however the file writes them
  values.reserve(words_.size());
  spellings.reserve(words_.size());
  for (const std::string& word : words_) {
    NumberText buffer;
    values.push_back(parse_number(word));
    spellings.emplace_back(one_spelling(word, buffer));
  }
  const bool numeric = std::all_of(
      values.begin(), values.end(), [](const auto& value) { return value.has_value(); });
  std::vector<std::size_t> order(words_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (numeric && *values[a] != *values[b]) {
      return *values[a] < *values[b];
    }
    return spellings[a] < spellings[b];
  });
  std::vector<std::int32_t> classes(words_.size());
  std::vector<std::string> sorted;
  for (const std::size_t number : order) {
    classes[number] = static_cast<std::int32_t>(sorted.size());
    sorted.push_back(std::move(words_[number]));
  }
  words_ = std::move(sorted);
  for (auto& [word, number] : numbers_) {
    number = classes[static_cast<std::size_t>(number)];
  }
  return classes;
}

std::optional<std::int32_t> ClassNames::class_of(std::string_view word) const {
  NumberText buffer;
  const auto known = numbers_.find(one_spelling(word, buffer));
  return known == numbers_.end() ? std::nullopt : std::optional(known->second);
}

std::string ClassNames::list() const {
  constexpr std::size_t kMost = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, words_.size()); ++i) {
    text += (i == 0 ? "" : ", ") + shown(words_[i]);
  }
  return words_.size() > kMost ? concat(text, " and ", words_.size() - kMost, " more") : text;
}

}  // namespace trireme::detail
