// 1 bit for each element: its sign, and for every 1024 the mean magnitude. Of all vectors of one
// magnitude and these signs it is the nearest: error^2 = |x|_2^2 - |x|_1^2 / d.

#include <cmath>
#include <cstring>

#include "compress/formats.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kSignBlock = 1024;

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
    for (std::size_t i = 0; i < values.size(); i += 8) {
      unsigned eight = 0;
      for (std::size_t j = i; j < std::min(i + 8, values.size()); ++j) {
        eight |= (values[j] < 0 ? 1U : 0U) << (j - i);
      }
      *bits++ = static_cast<std::byte>(eight);
    }
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey&) const override {
    float mean = 0;
    std::memcpy(&mean, from.data(), sizeof(mean));
    const std::byte* bits = from.data() + sizeof(mean);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool negative = ((bits[i / 8] >> (i % 8)) & std::byte{1}) != std::byte{0};
      values[i] = negative ? -mean : mean;
    }
  }
};

}  // namespace

std::shared_ptr<const Compressor> make_sign() {
  return std::make_shared<Sign>();
}

}  // namespace trireme::detail
