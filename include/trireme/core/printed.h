#pragma once

#include <cstdio>
#include <string>

namespace trireme::detail {

// What std::printf would print, up to 127 characters.
template <class... Values>
std::string printed(const char* pattern, Values... values) {
  char text[128];
  std::snprintf(text, sizeof(text), pattern, values...);
  return text;
}

}  // namespace trireme::detail
