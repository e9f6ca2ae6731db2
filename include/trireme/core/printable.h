#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::detail {

// Text from an untrusted source, made safe to show on a terminal or put into a message:
// control characters and bytes that are not UTF-8 are written as \x1b, and what is longer than
// `longest` bytes is cut, with "..." at its end. A terminal obeys control characters, and a line
// break would begin a line that looks like ours.
std::string printable(std::string_view text, std::size_t longest = 256);

}  // namespace trireme::detail
