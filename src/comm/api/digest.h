#pragma once

#include <string>

namespace trireme::detail {

// The first half of the SHA-256 of a text, in hexadecimal digits.
std::string hex_digest(const std::string& text);

}  // namespace trireme::detail
