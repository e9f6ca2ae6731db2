#include "trireme/optim/square_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace trireme {
namespace {

// Magnitudes over thirty orders, as gradients have them.
template <class T>
std::vector<T> values(std::size_t numel, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> result(numel);
  for (T& value : result) {
    value =
        static_cast<T>(normal(random) * std::pow(10.0, static_cast<double>(random() % 30) - 25));
  }
  return result;
}

template <class T>
void expect_order_free() {
  constexpr Dtype kType = DtypeOf<T>::kValue;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    auto data = values<T>(20'011, seed);
    const auto count = static_cast<std::int64_t>(data.size());
    const double largest = largest_magnitude({data.data(), count, kType});
    const SquareQuanta quanta = SquareQuanta::of(largest, count);
    const SquareSum whole = sum_squares({data.data(), count, kType}, quanta);
    long double exact = 0;
    for (const T value : data) {
      exact += static_cast<long double>(value) * static_cast<long double>(value);
    }
    EXPECT_NEAR(static_cast<double>(whole.total() / exact), 1, 1e-13);

    // Any order of the elements, any cuts, any order of the parts.
    std::shuffle(data.begin(), data.end(), random);
    std::vector<SquareSum> parts;
    for (std::int64_t begin = 0; begin < count;) {
      const std::int64_t end =
          std::min<std::int64_t>(count, begin + 1 + static_cast<std::int64_t>(random() % 700));
      parts.push_back(sum_squares({data.data() + begin, end - begin, kType}, quanta));
      begin = end;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    SquareSum sum;
    for (const SquareSum& part : parts) {
      sum.add(part);
    }
    EXPECT_EQ(sum.coarse, whole.coarse);
    EXPECT_EQ(sum.fine, whole.fine);
  }
}

TEST(SquareSum, DoesNotDependOnOrderOrSplit) {
  expect_order_free<float>();
  expect_order_free<double>();
}

TEST(SquareSum, ScalesBeforeItSquares) {
  const std::vector<float> data = {3, 6, 12};
  const Scaling scaling{.divisor = 3, .unscale = 0.5};
  EXPECT_EQ(largest_magnitude({data.data(), 3, Dtype::kFloat32}, scaling), 2);
  const auto quanta = SquareQuanta::of(2, 3);
  EXPECT_EQ(sum_squares({data.data(), 3, Dtype::kFloat32}, quanta, scaling).total(), 0.25 + 1 + 4);
}

TEST(LargestMagnitude, IsInfiniteWhereAnElementIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t at = 0; at < 37; ++at) {
      std::vector<float> data(37, 1);
      data[at] = bad;
      EXPECT_TRUE(std::isinf(largest_magnitude({data.data(), 37, Dtype::kFloat32}))) << at;
    }
  }
  EXPECT_EQ(largest_magnitude({nullptr, 0, Dtype::kFloat32}), 0);
}

TEST(SquareSum, OfNothingIsZero) {
  const std::vector<float> zeros(10, 0);
  EXPECT_EQ(sum_squares({zeros.data(), 10, Dtype::kFloat32}, SquareQuanta::of(0, 10)).norm(), 0);
}

TEST(ClipFactor, IsTorchsAndNeverAboveOne) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(2, 1), 1 / (2 + 1e-6));
}

}  // namespace
}  // namespace trireme
