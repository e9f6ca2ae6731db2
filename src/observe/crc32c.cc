#include <array>

#include "trireme/observe/event_file.h"

namespace trireme {

std::uint32_t crc32c(std::span<const std::uint8_t> bytes) {
  static const auto table = [] {
    constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, lowest power first
    std::array<std::uint32_t, 256> result{};
    for (std::uint32_t byte = 0; byte < result.size(); ++byte) {
      std::uint32_t rest = byte;
      for (int bit = 0; bit < 8; ++bit) {
        rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0);
      }
      result[byte] = rest;
    }
    return result;
  }();
  std::uint32_t crc = ~0u;
  for (const std::uint8_t byte : bytes) {
    crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8);
  }
  return ~crc;
}

}  // namespace trireme
