#include "trireme/core/printable.h"

#include <cstdint>

namespace trireme::detail {
namespace {

constexpr std::string_view kCut = "...";

// A character of UTF-8, how many bytes it has; 0 bytes: there is none.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) {
    return {};
  }
  std::uint32_t code = first & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return {};
    }
    code = code << 6 | (byte(i) & 0x3FU);
  }
  // Written longer than needed, a surrogate, or beyond the last character.
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool wrong = code < kLeast[bytes] || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF;
  return wrong ? Character{} : Character{code, bytes};
}

// What a terminal obeys rather than shows, and what turns around the direction of the text after
// it.
bool is_control(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || (code >= 0x200E && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

std::string escaped(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (const char c : bytes) {
    const auto byte = static_cast<std::uint8_t>(c);
    result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text, std::size_t longest) {
  std::string result;
  std::size_t whole = 0;  // of the result, after which the mark of a cut still fits
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::string_view bytes = text.substr(0, character.bytes == 0 ? 1 : character.bytes);
    text.remove_prefix(bytes.size());
    if (character.bytes == 0 || is_control(character.code)) {
      result += escaped(bytes);
    } else {
      result += bytes;
    }
    if (result.size() + kCut.size() <= longest) {
      whole = result.size();
    }
    if (result.size() > longest) {
      result.resize(whole);
      result += kCut.substr(0, longest - whole);
      break;
    }
  }
  return result;
}

}  // namespace trireme::detail
