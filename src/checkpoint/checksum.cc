#include "checkpoint/checksum.h"

#include <charconv>

#include <xxhash.h>

namespace trireme::detail {
namespace {

constexpr std::size_t kChecksumDigits = 16;

}  // namespace

std::uint64_t checksum_of(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

std::string checksum_text(std::uint64_t checksum) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string text(kChecksumDigits, '0');
  for (std::size_t i = 0; i < kChecksumDigits; ++i) {
    text[kChecksumDigits - 1 - i] = kHex[(checksum >> (4 * i)) & 15];
  }
  return text;
}

std::optional<std::uint64_t> parse_checksum(std::string_view text) {
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != kChecksumDigits || result.ec != std::errc() ||
      result.ptr != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace trireme::detail
