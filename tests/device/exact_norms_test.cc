#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

template <class T>
void expect_exact_norms() {
  constexpr Dtype kType = DtypeOf<T>::kValue;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (const std::size_t numel : {0, 1, 3, 4, 17, 1000}) {
    std::vector<T> data(numel + 1);
    long double exact = 0;
    T most = 0;
    for (std::size_t i = 0; i < numel; ++i) {
      // Few digits: the exact sum fits a long double.
      data[i + 1] = static_cast<T>(std::nearbyint(normal(random) * 256) / 64);
      const long double scaled = static_cast<long double>(data[i + 1]) / 2;
      exact += scaled * scaled;
      most = std::max(most, std::abs(data[i + 1]) / 2);
    }
    const Scaling scaling{.divisor = 4, .unscale = 2};
    const ConstSpan span(data.data() + 1, static_cast<std::int64_t>(numel), kType);
    double largest = 0;
    device::host().largest(span, scaling, &largest);
    EXPECT_EQ(largest, static_cast<double>(most));
    SquareSum sum{.coarse = 1, .fine = 0};
    device::host().squares(
        span, SquareQuanta::of(largest, static_cast<std::int64_t>(numel)), scaling, &sum);
    EXPECT_EQ(sum.total(), static_cast<double>(exact + 1)) << numel;
  }
}

TEST(Norms, AreExactAndAddedToWhatIsThere) {
  expect_exact_norms<float>();
  expect_exact_norms<double>();
}

TEST(Norms, KeepTheLargestOfAllCalls) {
  const std::vector<float> small = {1, -2};
  double largest = 5;
  device::host().largest(small, {}, &largest);
  EXPECT_EQ(largest, 5);
  const std::vector<float> bad = {1, std::nanf("")};
  device::host().largest(bad, {}, &largest);
  EXPECT_TRUE(std::isinf(largest));
}

TEST(Norms, RefuseOtherTypes) {
  const std::vector<std::int32_t> integers = {1, 2};
  double largest = 0;
  SquareSum sum;
  const auto refused = [](const auto& call) {
    const std::string message = testing::message_of<ConfigError>(call);
    EXPECT_NE(message.find("norms are computed for float32 and float64, found int32"),
              std::string::npos)
        << message;
  };
  refused([&] { device::host().largest(integers, {}, &largest); });
  refused([&] { device::host().squares(integers, {1, 1}, {}, &sum); });
}

}  // namespace
}  // namespace trireme
