#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.h"

namespace trireme::detail {

// "1 rank", "3 ranks": a count with its noun, for messages. `several` is for nouns that do not just
// take an s.
template <class Count>
std::string counted(Count count, std::string_view one, std::string_view several = {}) {
  return count == 1        ? concat(count, " ", one)
         : several.empty() ? concat(count, " ", one, "s")
                           : concat(count, " ", several);
}

// "a, b and c"; `last`: what is between the last two.
inline std::string enumerated(const std::vector<std::string>& words, const char* last = " and ") {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
  }
  return text;
}

}  // namespace trireme::detail
