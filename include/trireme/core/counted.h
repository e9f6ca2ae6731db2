#pragma once

#include <string>
#include <string_view>

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

}  // namespace trireme::detail
