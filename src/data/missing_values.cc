#include "data/missing_values.h"

#include <algorithm>

#include "data/text_lines.h"

namespace trireme::detail {
namespace {

char small(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

char capital(char letter) {
  return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
}

}  // namespace

MissingValues::MissingValues(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word.empty()) {
      continue;
    }
    std::string letters = word;
    std::transform(letters.begin(), letters.end(), letters.begin(), small);
    begins_[static_cast<unsigned char>(letters[0])] = true;
    begins_[static_cast<unsigned char>(capital(letters[0]))] = true;
    words_.push_back(std::move(letters));
    if (const auto number = parse_number(word)) {
      numbers_.push_back(*number);
    }
  }
}

bool MissingValues::is_word(std::string_view cell) const {
  return std::any_of(words_.begin(), words_.end(), [cell](const std::string& word) {
    return word.size() == cell.size() &&
           std::equal(word.begin(), word.end(), cell.begin(), [](char letter, char found) {
             return letter == small(found);
           });
  });
}

bool MissingValues::is_number(std::string_view cell) const {
  const auto number = parse_number(cell);
  return number && std::find(numbers_.begin(), numbers_.end(), *number) != numbers_.end();
}

}  // namespace trireme::detail
