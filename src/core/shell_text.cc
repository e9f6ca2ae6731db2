#include "trireme/core/shell_text.h"

namespace trireme::detail {

std::string shell_text(const std::vector<std::string>& words) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  std::string text;
  for (const std::string& word : words) {
    std::string quoted = word;
    for (std::size_t at = 0; (at = quoted.find('\'', at)) != std::string::npos; at += 4) {
      quoted.replace(at, 1, R"('\'')");
    }
    const bool plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    text += (text.empty() ? "" : " ") + (plain ? word : "'" + quoted + "'");
  }
  return text;
}

}  // namespace trireme::detail
