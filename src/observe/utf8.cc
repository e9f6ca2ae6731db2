#include "observe/utf8.h"

#include <cstdint>

namespace trireme::detail {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool continues(char byte) {
  return (static_cast<std::uint8_t>(byte) & 0xC0) == 0x80;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues(text[i])) {
      return 0;
    }
  }
  // Longer than needed, a surrogate, or beyond the last character.
  const auto second = static_cast<std::uint8_t>(text[1]);
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                     (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return wrong ? 0 : length;
}

std::string valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    result += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

std::string first_characters(std::string_view text, std::size_t characters) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues(text[at]) && characters-- == 0) {
      break;
    }
  }
  return std::string(text.substr(0, at));
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char byte : text) {
    count += continues(byte) ? 0 : 1;
  }
  return count;
}

}  // namespace trireme::detail
