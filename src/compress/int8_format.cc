// 8 bits for each element: whole multiples of a scale, of which the largest magnitude is 127. The
// error is at most half of the scale.

#include <cmath>
#include <cstring>

#include "compress/formats.h"
#include "compress/magnitude.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kInt8Block = 256;
constexpr float kMostSteps = 127;
// So that 127 of it are still finite.
constexpr float kMostScale = 0x1.0204p121F;

class Int8 final : public Compressor {
 public:
  Int8() : Compressor({.name = "int8", .block = kInt8Block, .bytes = sizeof(float) + kInt8Block}) {}

  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey&) const override {
    // Of a block that is not finite, neither is the scale, nor anything that is decoded.
    float scale = largest_magnitude(values) / kMostSteps;
    scale = std::isfinite(scale) ? std::min(scale, kMostScale) : scale;
    std::memcpy(to.data(), &scale, sizeof(scale));
    auto* steps = reinterpret_cast<std::int8_t*>(to.data() + sizeof(scale));
    if (scale == 0 || !std::isfinite(scale)) {
      std::memset(steps, 0, values.size());
      return;
    }
    // Adding it leaves the nearest whole number, ties to even, in the low bits.
    constexpr float kMagic = 0x1.8p23F;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto nearest = std::bit_cast<std::int32_t>(values[i] / scale + kMagic) -
                           std::bit_cast<std::int32_t>(kMagic);
      steps[i] = static_cast<std::int8_t>(std::clamp(nearest, -127, 127));  // tiny scales are rough
    }
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey&) const override {
    float scale = 0;
    std::memcpy(&scale, from.data(), sizeof(scale));
    const auto* steps = reinterpret_cast<const std::int8_t*>(from.data() + sizeof(scale));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(steps[i]) * scale;
    }
  }
};

}  // namespace

std::shared_ptr<const Compressor> make_int8() {
  return std::make_shared<Int8>();
}

}  // namespace trireme::detail
