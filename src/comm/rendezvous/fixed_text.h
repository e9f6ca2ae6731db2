#pragma once

#include <cstring>
#include <string>

#include "trireme/core/error.h"

namespace trireme::detail {

// Text in messages of fixed layout: what is too long is cut, what is left over is zero.
template <std::size_t kSize>
void copy_text(char (&to)[kSize], const std::string& from) {
  std::memset(to, 0, kSize);
  from.copy(to, kSize - 1);
}

// What is cut says so, and not in the middle of a character.
inline std::string shortened(const std::string& text, std::size_t longest) {
  if (text.size() <= longest) {
    return text;
  }
  const std::string mark = concat("... (cut; it has ", text.size(), " bytes)");
  std::size_t end = longest - mark.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return text.substr(0, end) + mark;
}

template <std::size_t kSize>
std::string text_of(const char (&from)[kSize]) {
  return {from, strnlen(from, kSize)};
}

}  // namespace trireme::detail
