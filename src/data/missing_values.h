#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::detail {

// Which cells hold nothing: empty ones, and some words, in small or capital letters.
class MissingValues {
 public:
  explicit MissingValues(const std::vector<std::string>& words);
  // A cell of words.
  bool contain(std::string_view cell) const {
    return cell.empty() || (begins_[static_cast<unsigned char>(cell[0])] && is_word(cell));
  }
  // A cell of a column of numbers, where -999.0 is -999 in another spelling.
  bool contain_in_numbers(std::string_view cell) const {
    return contain(cell) || (!numbers_.empty() && is_number(cell));
  }

 private:
  bool is_word(std::string_view cell) const;
  bool is_number(std::string_view cell) const;

  std::vector<std::string> words_;  // in small letters
  std::vector<double> numbers_;     // those of the words that are numbers
  std::array<bool, 256> begins_{};  // how any of them begins: nearly every number is told apart
};

}  // namespace trireme::detail
