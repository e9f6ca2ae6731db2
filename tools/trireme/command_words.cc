#include "command_words.h"

#include <fstream>

namespace trireme::tools {

std::vector<std::string> command_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    words.push_back(word);
  }
  return words;
}

std::vector<std::string> without_flags(const std::vector<std::string>& words,
                                       const std::set<std::string>& flags) {
  std::vector<std::string> left;
  bool of_flag = false;  // the word at hand may be the value of one that was left out
  for (const std::string& word : words) {
    const bool is_value = of_flag && !word.starts_with('-');
    const bool is_flag = flags.contains(word.substr(0, word.find('=')));
    of_flag = is_flag && word.find('=') == std::string::npos;
    if (!is_value && !is_flag) {
      left.push_back(word);
    }
  }
  return left;
}

}  // namespace trireme::tools
