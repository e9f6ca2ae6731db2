// 16 bits for each element: a float32 rounded to nearest, by the kernels of the device.

#include <cmath>
#include <cstring>
#include <limits>

#include "compress/formats.h"
#include "compress/magnitude.h"
#include "device/stream.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kHalfBlock = 128;

ConstSpan floats(std::span<const float> values) {
  return {values.data(), static_cast<std::int64_t>(values.size()), Dtype::kFloat32};
}
Span floats(std::span<float> values) {
  return {values.data(), static_cast<std::int64_t>(values.size()), Dtype::kFloat32};
}

// The values, held within what can be written, so that nothing finite becomes infinite: the largest
// floats would be rounded up to it. `room` is for those that are not as they were.
std::span<const float> held(std::span<const float> values, float largest, float most, float* room) {
  if (largest <= most || !std::isfinite(largest)) {
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    room[i] = std::clamp(values[i], -most, most);
  }
  return {room, values.size()};
}

class Bf16 final : public Compressor {
 public:
  Bf16() : Compressor({.name = "bf16", .block = kHalfBlock, .bytes = 2 * kHalfBlock}) {}

  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey&) const override {
    float room[kHalfBlock];
    device::host().copy({to.data(), static_cast<std::int64_t>(values.size()), Dtype::kBFloat16},
                        floats(held(values, largest_magnitude(values), 0x1.FEp127F, room)));
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey&) const override {
    device::host().copy(floats(values),
                        {from.data(), static_cast<std::int64_t>(values.size()), Dtype::kBFloat16});
  }
};

// Note [float16 with an exponent]
// Gradients are often smaller than float16 reaches, and their sums larger. So a block is multiplied
// by the power of two that brings its largest magnitude to at least 2^14 and below 2^15: nothing
// overflows, and what underflows is less than 2^-38 of the largest. The exponent may be beyond that
// of a float, hence two factors.
class Fp16 final : public Compressor {
 public:
  Fp16() : Compressor({.name = "fp16", .block = kHalfBlock, .bytes = 2 * kHalfBlock + 2}) {}

  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey&) const override {
    constexpr float kMost = 0x1.FFCp127F;
    const float largest = largest_magnitude(values);
    std::int16_t exponent = 0;
    if (largest > 0 && std::isfinite(largest)) {
      int own = 0;
      std::frexp(largest, &own);  // in [0.5, 1) times 2^own
      exponent = static_cast<std::int16_t>(15 - own);
    }
    float scaled[kHalfBlock];
    scale(held(values, largest, kMost, scaled), exponent, scaled);
    std::memcpy(to.data(), &exponent, sizeof(exponent));
    device::host().copy(
        {to.data() + sizeof(exponent), static_cast<std::int64_t>(values.size()), Dtype::kFloat16},
        floats(std::span<const float>(scaled, values.size())));
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey&) const override {
    std::int16_t exponent = 0;
    std::memcpy(&exponent, from.data(), sizeof(exponent));
    device::host().copy(floats(values),
                        {from.data() + sizeof(exponent),
                         static_cast<std::int64_t>(values.size()),
                         Dtype::kFloat16});
    scale(values, -exponent, values.data());
  }

 private:
  static void scale(std::span<const float> values, int exponent, float* to) {
    const float one = std::ldexp(1.0F, exponent / 2);
    const float other = std::ldexp(1.0F, exponent - exponent / 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      to[i] = values[i] * one * other;
    }
  }
};

}  // namespace

std::shared_ptr<const Compressor> make_bf16() {
  return std::make_shared<Bf16>();
}

std::shared_ptr<const Compressor> make_fp16() {
  return std::make_shared<Fp16>();
}

}  // namespace trireme::detail
