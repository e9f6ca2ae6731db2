#pragma once

#include <cstring>
#include <string>

namespace trireme::detail {

// Text in messages of fixed layout: what is too long is cut, what is left over is zero.
template <std::size_t kSize>
void copy_text(char (&to)[kSize], const std::string& from) {
  std::memset(to, 0, kSize);
  from.copy(to, kSize - 1);
}

template <std::size_t kSize>
std::string text_of(const char (&from)[kSize]) {
  return {from, strnlen(from, kSize)};
}

}  // namespace trireme::detail
