#include "data/missing_values.h"

#include <algorithm>

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

}  // namespace trireme::detail
