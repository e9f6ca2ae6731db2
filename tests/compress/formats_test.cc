// The compressors that have names, against the formulas of what they may lose and against other
// implementations of the same formats.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/compress/compressor.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::message_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> normal(std::size_t count, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, scale);
  std::vector<float> values(count);
  for (float& value : values) {
    value = draw(random);
  }
  return values;
}

std::vector<float> through(const Compressor& compressor,
                           const std::vector<float>& values,
                           const BlockKey& key = {}) {
  std::vector<std::byte> bytes(compressor.format().bytes);
  compressor.encode(values, bytes, key);
  std::vector<float> decoded(values.size(), 77);
  compressor.decode(bytes, decoded, key);
  return decoded;
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) {
    most = std::max(most, std::abs(value));
  }
  return most;
}

TEST(Compressor, SizesAreArithmetic) {
  const std::pair<const char*, std::pair<std::int64_t, std::size_t>> formats[] = {
      {"bf16", {128, 256}}, {"fp16", {128, 258}}, {"int8", {256, 260}}};
  for (const auto& [name, sizes] : formats) {
    const auto compressor = make_compressor(name);
    EXPECT_EQ(compressor->format().name, name);
    EXPECT_EQ(compressor->format().block, sizes.first);
    EXPECT_EQ(compressor->format().bytes, sizes.second);
    EXPECT_EQ(compressor->encoded_bytes(0), 0U);
    EXPECT_EQ(compressor->encoded_bytes(1), sizes.second);
    EXPECT_EQ(compressor->encoded_bytes(sizes.first), sizes.second);
    EXPECT_EQ(compressor->encoded_bytes(3 * sizes.first + 1), 4 * sizes.second);
  }
  for (const char* name :
       {"bf16", "fp16", "int8", "sign", "topk:0.01", "topk:1:0.5", "randk:0.01", "randk:1"}) {
    EXPECT_NO_THROW(try_compressor(*make_compressor(name))) << name;
  }
}

// The upper half of the bits, rounded to nearest with ties to even by an addition in double, in
// which a float's lower half is far from the end.
TEST(Bf16, IsTheNearestNumberWithEightBits) {
  const auto bf16 = make_compressor("bf16");
  for (const float scale : {1e-38F, 1e-6F, 1.0F, 1e30F}) {
    const std::vector<float> values = normal(128, scale, 3);
    const std::vector<float> decoded = through(*bf16, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      int exponent = 0;
      std::frexp(values[i], &exponent);
      const double unit = std::ldexp(1.0, std::max(exponent - 8, -133));  // of the last bit kept
      EXPECT_EQ(decoded[i], static_cast<float>(std::nearbyint(values[i] / unit) * unit));
    }
  }
  // The largest floats would round to infinity.
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(through(*bf16, {most, -most, 1})[0], 0x1.FEp127F);
  EXPECT_EQ(through(*bf16, {most, -most, 1})[1], -0x1.FEp127F);
  EXPECT_EQ(through(*bf16, {kInfinity, 1})[0], kInfinity);
  EXPECT_TRUE(std::isnan(through(*bf16, {NAN, 1})[0]));
}

// Eleven bits of every element within 2^-29 of the block's largest; half of the last of them below.
TEST(Fp16, NeitherOverflowsNorUnderflows) {
  const auto fp16 = make_compressor("fp16");
  for (const float scale : {1e-42F, 1e-30F, 1e-6F, 1.0F, 1e6F, 1e37F}) {
    for (const std::size_t count : {1, 31, 128}) {
      const std::vector<float> values = normal(count, scale, 5);
      const std::vector<float> decoded = through(*fp16, values);
      int exponent = 0;
      std::frexp(largest(values), &exponent);
      for (std::size_t i = 0; i < values.size(); ++i) {
        int own = 0;
        std::frexp(values[i], &own);
        const int last = std::max({own - 11, exponent - 15 - 24, -149});
        const double unit = std::ldexp(1.0, last);
        EXPECT_EQ(decoded[i], static_cast<float>(std::nearbyint(values[i] / unit) * unit))
            << scale << " " << i;
      }
    }
  }
  const float most = std::numeric_limits<float>::max();  // would round to infinity
  EXPECT_EQ(through(*fp16, {most, -most}), (std::vector<float>{0x1.FFCp127F, -0x1.FFCp127F}));
  EXPECT_EQ(through(*fp16, {kInfinity, 1}), (std::vector<float>{kInfinity, 1}));
  EXPECT_TRUE(std::isnan(through(*fp16, {1, NAN})[1]));
}

TEST(Int8, IsOffByHalfAStepAtMost) {
  const auto int8 = make_compressor("int8");
  for (const float scale : {1e-38F, 1e-6F, 1.0F, 1e37F}) {
    for (const std::size_t count : {1, 100, 256}) {
      const std::vector<float> values = normal(count, scale, 7);
      const double step = static_cast<double>(largest(values)) / 127;
      const std::vector<float> decoded = through(*int8, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double error = std::abs(static_cast<double>(values[i]) - decoded[i]);
        EXPECT_LE(error, 0.5 * step * (1 + 1e-5) + 127 * 0x1p-149) << scale;
        EXPECT_LE(std::abs(decoded[i] / step), 127.1);
      }
    }
  }
  // On a grid it is exact: multiples of 1/4 up to 127/4.
  std::vector<float> grid;
  for (int i = -127; i <= 127; ++i) {
    grid.push_back(static_cast<float>(i) / 4);
  }
  EXPECT_EQ(through(*int8, grid), grid);
  // Ties go to even: 2.5 and -0.5 of a step of 1.
  EXPECT_EQ(through(*int8, {127, 2.5F, -0.5F, 3.5F}), (std::vector<float>{127, 2, 0, 4}));
  EXPECT_EQ(through(*int8, std::vector<float>(256, 0)), std::vector<float>(256, 0));
  EXPECT_TRUE(std::isfinite(through(*int8, {std::numeric_limits<float>::max(), 1})[0]));
  // A block with something that is not finite is not taken for one that is.
  EXPECT_FALSE(std::isfinite(through(*int8, {1, kInfinity})[1]));
  EXPECT_FALSE(std::isfinite(through(*int8, {NAN, 1})[0]));
}

// error^2 = |x|_2^2 - |x|_1^2 / d
TEST(Sign, IsOffByWhatTheFormulaSays) {
  const auto sign = make_compressor("sign");
  EXPECT_EQ(sign->format().bytes, 132U);
  for (const std::size_t count : {1, 3, 1000, 1024}) {
    const std::vector<float> values = normal(count, 0.3F, 9);
    const std::vector<float> decoded = through(*sign, values);
    double error = 0;
    double one = 0;
    double two = 0;
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(std::signbit(values[i]), std::signbit(decoded[i]));
      error += std::pow(static_cast<double>(values[i]) - decoded[i], 2);
      one += std::abs(static_cast<double>(values[i]));
      two += std::pow(static_cast<double>(values[i]), 2);
    }
    EXPECT_NEAR(error, two - one * one / static_cast<double>(count), 1e-6 * two);
  }
  EXPECT_FALSE(std::isfinite(through(*sign, {1, NAN})[0]));
}

TEST(TopK, KeepsTheLargestAndOfEqualOnesTheFirst) {
  const auto top = make_compressor("topk:0.01");
  EXPECT_EQ(top->format().bytes, 60U);  // 10 of 1024
  struct Case {
    const char* name;
    double fraction;
    int steps;  // of a value of 1: the fewer, the more are equal
  };
  for (const auto& [name, fraction, steps] : {Case{"topk:0.001", 0.001, 4},
                                              Case{"topk:0.01", 0.01, 4},
                                              Case{"topk:0.01", 0.01, 1000},
                                              Case{"topk:0.01", 0.01, 0},
                                              Case{"topk:0.0625", 0.0625, 1000},
                                              Case{"topk:0.064", 0.064, 4},
                                              Case{"topk:0.3", 0.3, 1000}}) {
    for (const std::size_t count : {1, 31, 33, 40, 64, 65, 700, 1024}) {
      std::vector<float> values = normal(count, 1, 13);
      for (float& value : values) {
        value = steps == 0
                    ? 0
                    : std::round(value * static_cast<float>(steps)) / static_cast<float>(steps);
      }
      if (count > 500) {
        values[count - 1] = -HUGE_VALF;  // the last one, and a group of large ones
        std::fill_n(values.begin() + 320, 20, 50.0F);
      }
      std::vector<std::size_t> order(count);
      for (std::size_t i = 0; i < count; ++i) {
        order[i] = i;
      }
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::abs(values[a]) > std::abs(values[b]);
      });
      const auto kept = std::max<std::size_t>(
          1, static_cast<std::size_t>(std::round(fraction * static_cast<double>(count))));
      std::vector<float> expected(count, 0);
      for (std::size_t i = 0; i < kept; ++i) {
        expected[order[i]] = values[order[i]];
      }
      EXPECT_EQ(through(*make_compressor(name), values), expected) << name << " of " << count;
    }
  }
  EXPECT_EQ(through(*make_compressor("topk:1"), normal(1024, 1, 2)), normal(1024, 1, 2));
  // Whatever the bytes are, nothing is written elsewhere.
  std::vector<std::byte> altered(60, std::byte{0x7F});
  std::vector<float> decoded(1024, 1);
  top->decode(altered, decoded, {});
  EXPECT_EQ(decoded, std::vector<float>(1024, 0));
}

// Every element is kept in a tenth of the draws, ten times as large: z-tests of how often, at 5
// standard deviations for 1024 elements.
TEST(RandomK, IsTheGradientInTheMean) {
  const auto random = make_compressor("randk:0.1");
  EXPECT_EQ(random->format().bytes, 102U * 4);
  const std::vector<float> values = normal(1024, 1, 17);
  std::vector<int> times(1024, 0);
  constexpr int kDraws = 2000;
  for (int step = 0; step < kDraws; ++step) {
    const BlockKey key{.step = step, .parameter = 3, .block = 5};
    const std::vector<float> decoded = through(*random, values, key);
    int kept = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (decoded[i] != 0) {
        EXPECT_EQ(decoded[i], values[i] * (1024.0F / 102.0F));
        ++times[i];
        ++kept;
      }
    }
    ASSERT_EQ(kept, 102);
    // The sum keeps the same ones, as they are.
    BlockKey sum = key;
    sum.sum = true;
    ASSERT_EQ(through(*random, decoded, sum), decoded);
  }
  const double p = 102.0 / 1024;
  for (const int count : times) {
    EXPECT_LT(std::abs(count - kDraws * p) / std::sqrt(kDraws * p * (1 - p)), 5);
  }
  // Other steps, parameters and blocks draw others.
  const auto base = through(*random, values, {.step = 1, .parameter = 1, .block = 1});
  EXPECT_NE(base, through(*random, values, {.step = 2, .parameter = 1, .block = 1}));
  EXPECT_NE(base, through(*random, values, {.step = 1, .parameter = 2, .block = 1}));
  EXPECT_NE(base, through(*random, values, {.step = 1, .parameter = 1, .block = 2}));
}

TEST(Compressor, FormatsThatCannotBeAreRefused) {
  struct Empty final : Compressor {
    using Compressor::Compressor;
    void encode(std::span<const float>, std::span<std::byte>, const BlockKey&) const override {}
    void decode(std::span<const std::byte>, std::span<float>, const BlockKey&) const override {}
  };
  const std::pair<Compressor::Format, std::string> wrong[] = {
      {{.block = 64, .bytes = 64}, "needs a name"},
      {{.name = "mine", .block = 100, .bytes = 64},
       "compressor mine: a block has a multiple of 32"},
      {{.name = "mine", .block = 0, .bytes = 64}, "found 0"},
      {{.name = "mine", .block = 64, .bytes = 0}, "becomes 1 to 512 bytes, found 0"},
      {{.name = "mine", .block = 64, .bytes = 513}, "found 513"},
      {{.name = "mine", .block = 64, .bytes = 8, .momentum = 0.9}, "only with feedback"},
      {{.name = "mine", .block = 64, .bytes = 8, .feedback = true, .momentum = 1}, "found 1"}};
  for (const auto& [format, expected] : wrong) {
    const std::string message = message_of<ConfigError>([&] { Empty compressor(format); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
  const std::string unknown = message_of<ConfigError>([] { make_compressor("int9"); });
  EXPECT_NE(unknown.find("bf16, fp16, int8, sign, topk:FRACTION"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("found \"int9\""), std::string::npos) << unknown;
  const std::pair<const char*, std::string> numbers[] = {
      {"topk", "found \"topk\""},
      {"topk:", "expected a number in topk:, found nothing"},
      {"topk:0", "above 0 and at most 1, found 0"},
      {"topk:1.5", "found 1.5"},
      {"topk:nan", "found nan"},
      {"topk:0.1x", "found 0.1x"},
      {"topk:0.1:1", "compress: topk has a momentum of at least 0 and below 1, found 1"},
      {"topk:0.1:-0.5", "compress: topk has a momentum of at least 0 and below 1, found -0.5"},
      {"randk:-1", "found -1"},
      {"sign:3", "found \"sign:3\""}};
  for (const auto& [name, expected] : numbers) {
    const std::string message = message_of<ConfigError>([&] { make_compressor(name); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

// What it says of itself is not true.
struct Liar final : Compressor {
  enum class Lie { kLonger, kLeavesOut, kTooFar, kInfinite, kForgets, kNone };
  explicit Liar(Lie told, float factor = 1)
      : Compressor({.name = "liar", .block = 32, .bytes = 4}), lie(told), scale(factor) {}
  void encode(std::span<const float> values,
              std::span<std::byte> to,
              const BlockKey&) const override {
    const float first =
        values[0] * scale + (lie == Lie::kForgets ? static_cast<float>(++calls) : 0);
    std::memcpy(to.data(), &first, sizeof(first));
    if (lie == Lie::kLonger) {
      to.data()[4] = std::byte{1};
    }
  }
  void decode(std::span<const std::byte>, std::span<float> values, const BlockKey&) const override {
    const std::size_t end = values.size() - (lie == Lie::kLeavesOut ? 1 : 0);
    for (std::size_t i = 0; i < end + (lie == Lie::kTooFar ? 1 : 0); ++i) {
      values.data()[i] = lie == Lie::kInfinite ? kInfinity : 1;
    }
  }
  Lie lie;
  float scale;
  mutable int calls = 0;
};

TEST(Compressor, OneThatLiesIsRefusedByName) {
  const std::pair<Liar::Lie, std::string> lies[] = {
      {Liar::Lie::kLonger, "compressor liar writes past the 4 bytes"},
      {Liar::Lie::kLeavesOut, "leaves out element 31"},
      {Liar::Lie::kTooFar, "writes past its end"},
      {Liar::Lie::kInfinite, "compressor liar makes inf of"},
      {Liar::Lie::kForgets, "something else of the same block the second time"}};
  for (const auto& [lie, expected] : lies) {
    const std::string message = message_of<ConfigError>([&] { try_compressor(Liar(lie)); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
  EXPECT_EQ(try_compressor(Liar(Liar::Lie::kNone)), try_compressor(Liar(Liar::Lie::kNone)));
  EXPECT_NE(try_compressor(Liar(Liar::Lie::kNone)), try_compressor(Liar(Liar::Lie::kNone, 2)));
}

}  // namespace
}  // namespace trireme
