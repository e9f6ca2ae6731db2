// 1 bit for each element: its sign, and for every 1024 the mean magnitude. Of all vectors of one
// magnitude and these signs it is the nearest: error^2 = |x|_2^2 - |x|_1^2 / d.

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "compress/formats.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kSignBlock = 1024;
constexpr std::uint32_t kSignBit = 0x80000000U;

// 1 for what is below zero: neither for -0 nor for what is not a number. By the bits, because
// compilers turn a comparison of floats into a jump here, which is wrong half of the time.
constexpr std::uint32_t below_zero(float value) {
  constexpr std::uint32_t kLeast = kSignBit + 1;
  constexpr std::uint32_t kMost = kSignBit | 0x7F800000U;  // minus infinity
  return std::bit_cast<std::uint32_t>(value) - kLeast <= kMost - kLeast ? 1 : 0;
}

// The sign bits of eight elements, for each value of their byte.
using EightSigns = std::array<std::uint32_t, 8>;
constexpr std::array<EightSigns, 256> kSigns = [] {
  std::array<EightSigns, 256> signs{};
  for (std::uint32_t byte = 0; byte < signs.size(); ++byte) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      signs[byte][i] = (byte >> i & 1U) * kSignBit;
    }
  }
  return signs;
}();

class Sign final : public Compressor {
 public:
  Sign()
      : Compressor({.name = "sign",
                    .block = kSignBlock,
                    .bytes = sizeof(float) + kSignBlock / 8,
                    .feedback = true}) {}

  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey&) const override {
    double sum = 0;
    for (const float value : values) {
      sum += std::abs(value);
    }
    const auto mean = static_cast<float>(sum / static_cast<double>(values.size()));
    std::memcpy(to.data(), &mean, sizeof(mean));
    std::byte* bits = to.data() + sizeof(mean);
    std::size_t i = 0;
    for (; i + 8 <= values.size(); i += 8) {
      std::uint32_t eight = 0;
      for (std::uint32_t j = 0; j < 8; ++j) {
        eight |= below_zero(values[i + j]) << j;
      }
      *bits++ = static_cast<std::byte>(eight);
    }
    if (i < values.size()) {
      std::uint32_t rest = 0;
      for (std::uint32_t j = 0; i < values.size(); ++i, ++j) {
        rest |= below_zero(values[i]) << j;
      }
      *bits = static_cast<std::byte>(rest);
    }
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey&) const override {
    float mean = 0;
    std::memcpy(&mean, from.data(), sizeof(mean));
    const auto magnitude = std::bit_cast<std::uint32_t>(mean);
    const std::byte* bits = from.data() + sizeof(mean);
    std::size_t i = 0;
    for (; i + 8 <= values.size(); i += 8) {
      const EightSigns& signs = kSigns[static_cast<std::size_t>(*bits++)];
      for (std::size_t j = 0; j < 8; ++j) {
        values[i + j] = std::bit_cast<float>(magnitude ^ signs[j]);
      }
    }
    for (std::size_t j = 0; i < values.size(); ++i, ++j) {
      values[i] = std::bit_cast<float>(magnitude ^ kSigns[static_cast<std::size_t>(*bits)][j]);
    }
  }
};

}  // namespace

std::shared_ptr<const Compressor> make_sign() {
  return std::make_shared<Sign>();
}

}  // namespace trireme::detail
