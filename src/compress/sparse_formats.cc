// A few elements of every 1024, exactly: the largest, or some that are drawn.

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "compress/formats.h"
#include "trireme/core/concat.h"

namespace trireme::detail {
namespace {

constexpr std::int64_t kSparseBlock = 1024;
using Position = std::uint16_t;
constexpr Position kNoPosition = 0xFFFF;

std::size_t kept_of(double fraction, std::size_t numel) {
  const double kept = std::round(fraction * static_cast<double>(numel));
  return std::clamp<std::size_t>(static_cast<std::size_t>(kept), 1, numel);
}

std::string sparse_name(const char* name, double fraction) {
  return concat(name, ":", fraction);
}

using Magnitudes = std::array<std::int32_t, kSparseBlock>;  // without the sign's bit

constexpr std::size_t kFew = 64;
constexpr std::size_t kGroup = 32;  // looked at together; one that is short is filled with zeros

// The least of the `kept` largest magnitudes. Of a few, nearly none of a block's elements is among
// the largest so far: groups that have none are passed over in some instructions.
std::int32_t least_of_few(const Magnitudes& magnitudes, std::size_t numel, std::size_t kept) {
  std::array<std::int32_t, kFew> largest{};  // ascending
  std::copy_n(magnitudes.begin(), kept, largest.begin());
  std::sort(largest.begin(), largest.begin() + static_cast<std::ptrdiff_t>(kept));
  const auto enter = [&](std::int32_t magnitude) {
    std::size_t at = 1;
    for (; at < kept && largest[at] < magnitude; ++at) {
      largest[at - 1] = largest[at];
    }
    largest[at - 1] = magnitude;
  };
  const auto look_at = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (magnitudes[i] > largest[0]) {
        enter(magnitudes[i]);
      }
    }
  };
  std::size_t group = (kept + kGroup - 1) / kGroup * kGroup;
  look_at(kept, std::min(group, numel));
  for (; group < numel; group += kGroup) {
    std::int32_t any = 0;
    for (std::size_t i = 0; i < kGroup; ++i) {
      any |= magnitudes[group + i] > largest[0] ? 1 : 0;
    }
    if (any != 0) {
      look_at(group, std::min(group + kGroup, numel));
    }
  }
  return largest[0];
}

std::int32_t least_of_many(Magnitudes magnitudes, std::size_t numel, std::size_t kept) {
  const auto last = magnitudes.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(magnitudes.begin(),
                   last,
                   magnitudes.begin() + static_cast<std::ptrdiff_t>(numel),
                   std::greater<>());
  return *last;
}

// The k largest magnitudes, of equal ones the first: positions, then values.
class TopK final : public Compressor {
 public:
  TopK(double fraction, double momentum)
      : Compressor({.name = momentum > 0 ? concat(sparse_name("topk", fraction), ":", momentum)
                                         : sparse_name("topk", fraction),
                    .block = kSparseBlock,
                    .bytes = kept_of(fraction, kSparseBlock) * (sizeof(Position) + sizeof(float)),
                    .feedback = true,
                    .momentum = momentum}),
        fraction_(fraction) {}

  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey&) const override {
    const std::size_t kept = kept_of(fraction_, values.size());
    Magnitudes magnitudes;
    for (std::size_t i = 0; i < values.size(); ++i) {
      magnitudes[i] =
          static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFU);
    }
    std::fill(magnitudes.begin() + static_cast<std::ptrdiff_t>(values.size()), magnitudes.end(), 0);
    const std::int32_t least = kept <= kFew ? least_of_few(magnitudes, values.size(), kept)
                                            : least_of_many(magnitudes, values.size(), kept);
    std::int32_t larger = 0;
    for (const std::int32_t magnitude : magnitudes) {
      larger += magnitude > least ? 1 : 0;
    }
    auto equal = static_cast<std::ptrdiff_t>(kept) - larger;
    const std::size_t slots = kept_of(fraction_, kSparseBlock);
    std::byte* const numbers = to.data() + slots * sizeof(Position);
    std::size_t slot = 0;
    const auto take = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end && slot < kept; ++i) {
        if (magnitudes[i] > least || (magnitudes[i] == least && equal-- > 0)) {
          put(to.data(), slot, static_cast<Position>(i));
          std::memcpy(numbers + slot * sizeof(float), &values[i], sizeof(float));
          ++slot;
        }
      }
    };
    for (std::size_t group = 0; group < values.size() && slot < kept; group += kGroup) {
      std::int32_t any = 0;
      for (std::size_t i = 0; i < kGroup; ++i) {
        any |= magnitudes[group + i] >= least ? 1 : 0;
      }
      if (any != 0) {
        take(group, std::min(group + kGroup, values.size()));
      }
    }
    for (; slot < slots; ++slot) {  // of a short block
      put(to.data(), slot, kNoPosition);
    }
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey&) const override {
    std::ranges::fill(values, 0.0F);
    const std::size_t slots = kept_of(fraction_, kSparseBlock);
    const std::byte* const numbers = from.data() + slots * sizeof(Position);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      Position position = 0;
      std::memcpy(&position, from.data() + slot * sizeof(position), sizeof(position));
      if (position < values.size()) {  // also of bytes that were altered on the way
        std::memcpy(&values[position], numbers + slot * sizeof(float), sizeof(float));
      }
    }
  }

 private:
  static void put(std::byte* to, std::size_t slot, Position position) {
    std::memcpy(to + slot * sizeof(position), &position, sizeof(position));
  }

  double fraction_;
};

// splitmix64.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Which ones is drawn anew for each step and block, the same on all ranks and for all
// micro-batches, so that only values travel. They are multiplied by d / k: the mean over all draws
// is the gradient. (Of a sum, which has these elements only, they are taken as they are.)
class RandomK final : public Compressor {
 public:
  explicit RandomK(double fraction)
      : Compressor({.name = sparse_name("randk", fraction),
                    .block = kSparseBlock,
                    .bytes = kept_of(fraction, kSparseBlock) * sizeof(float)}),
        fraction_(fraction) {}

  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey& key) const override {
    const std::size_t kept = kept_of(fraction_, values.size());
    const Positions positions = drawn(values.size(), kept, key);
    const float scale = key.sum ? 1 : static_cast<float>(values.size()) / static_cast<float>(kept);
    constexpr float kMost = std::numeric_limits<float>::max();
    for (std::size_t i = 0; i < kept; ++i) {
      const float value = values[positions[i]];
      const float scaled = std::isfinite(value) ? std::clamp(value * scale, -kMost, kMost) : value;
      std::memcpy(to.data() + i * sizeof(float), &scaled, sizeof(float));
    }
  }
  void decode(std::span<const std::byte> from,
              std::span<float> values,
              const BlockKey& key) const override {
    std::ranges::fill(values, 0.0F);
    const std::size_t kept = kept_of(fraction_, values.size());
    const Positions positions = drawn(values.size(), kept, key);
    for (std::size_t i = 0; i < kept; ++i) {
      std::memcpy(&values[positions[i]], from.data() + i * sizeof(float), sizeof(float));
    }
  }

 private:
  using Positions = std::array<Position, kSparseBlock>;

  // The first cards of a shuffled deck.
  static Positions drawn(std::size_t numel, std::size_t kept, const BlockKey& key) {
    Positions positions;
    std::iota(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(numel), 0);
    std::uint64_t random = mixed(static_cast<std::uint64_t>(key.step));
    random = mixed(random ^ static_cast<std::uint64_t>(key.parameter));
    random = mixed(random ^ static_cast<std::uint64_t>(key.block));
    for (std::size_t i = 0; i < kept; ++i) {
      random = mixed(random);
      const auto left = static_cast<std::uint64_t>(numel - i);
      std::swap(positions[i], positions[i + static_cast<std::size_t>((random >> 32) * left >> 32)]);
    }
    return positions;
  }

  double fraction_;
};

}  // namespace

std::shared_ptr<const Compressor> make_top_k(double fraction, double momentum) {
  return std::make_shared<TopK>(fraction, momentum);
}

std::shared_ptr<const Compressor> make_random_k(double fraction) {
  return std::make_shared<RandomK>(fraction);
}

}  // namespace trireme::detail
