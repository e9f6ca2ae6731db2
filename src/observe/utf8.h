#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text as others will take it: names and notes may hold any bytes, but a reader of protocol buffers
// or XML drops a whole file over one byte that is not UTF-8.

namespace trireme::detail {

// The length of the UTF-8 character at the start of `text` (which is not empty), 0 where there is
// none.
std::size_t utf8_length(std::string_view text);

// The text with U+FFFD in place of each byte that is not UTF-8.
std::string valid_utf8(std::string_view text);

// The first `characters` characters of valid UTF-8. Each is taken to be one column wide.
std::string first_characters(std::string_view text, std::size_t characters);
std::size_t count_characters(std::string_view text);

}  // namespace trireme::detail
