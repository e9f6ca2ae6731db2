// The pass of an update rule: its vectors against the same formula, element by element.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "device/update_pass_test.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "device/host/update_pass-inl.h"

#ifndef TRIREME_TESTS_MADE_UP_CONSTANTS
#define TRIREME_TESTS_MADE_UP_CONSTANTS
namespace trireme {
struct MadeUpConstants {
  double rate;
  double decay;
};
}  // namespace trireme
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::by_vectors::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using device::HWY_NAMESPACE::Lanes;
#include "device/made_up_rule.h"

void made_up(const device::UpdateArrays& arrays, const MadeUpConstants& constants) {
  device::HWY_NAMESPACE::update_with<MadeUpRule, 3>(arrays, constants);
}
void look(const device::UpdateArrays& arrays, const MadeUpConstants& constants) {
  device::HWY_NAMESPACE::update_with<MadeUpLook, 1>(arrays, constants);
}

}  // namespace trireme::by_vectors::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "support/reference.h"

namespace trireme::by_vectors {
HWY_EXPORT(made_up);
HWY_EXPORT(look);

void update_made_up(const device::UpdateArrays& arrays, const MadeUpConstants& constants) {
  HWY_DYNAMIC_DISPATCH(made_up)(arrays, constants);
}
void look_made_up(const device::UpdateArrays& arrays, const MadeUpConstants& constants) {
  HWY_DYNAMIC_DISPATCH(look)(arrays, constants);
}
}  // namespace trireme::by_vectors

// The names of Highway's operations, for one element: what a GPU would have.
namespace trireme::by_elements {
namespace hn {
template <class T>
struct ScalableTag {};
template <class T>
T Set(ScalableTag<T>, T value) {  // NOLINT(readability-identifier-naming): Highway's names
  return value;
}
template <class T>
T Add(T a, T b) {  // NOLINT(readability-identifier-naming)
  return a + b;
}
template <class T>
T Sub(T a, T b) {  // NOLINT(readability-identifier-naming)
  return a - b;
}
template <class T>
T Mul(T a, T b) {  // NOLINT(readability-identifier-naming)
  return a * b;
}
template <class T>
T Div(T a, T b) {  // NOLINT(readability-identifier-naming)
  return a / b;
}
template <class T>
T Sqrt(T a) {  // NOLINT(readability-identifier-naming)
  return std::sqrt(a);
}
template <class T>
bool Gt(T a, T b) {  // NOLINT(readability-identifier-naming)
  return a > b;
}
template <class T>
T IfThenElse(bool which, T a, T b) {  // NOLINT(readability-identifier-naming)
  return which ? a : b;
}
}  // namespace hn
template <class T>
using Lanes = T;
#include "device/made_up_rule.h"
}  // namespace trireme::by_elements

namespace trireme {
namespace {

using device::UpdateArrays;

constexpr MadeUpConstants kConstants{0.1, 0.9};

// Everything that an update touches, with a guard element on both sides.
template <class T>
struct Memory {
  explicit Memory(std::int64_t numel)
      : parameter(made(numel, 1)),
        gradient(made(numel, 2)),
        a(made(numel, 3)),
        b(made(numel, 4)),
        c(made(numel, 5)),
        low(static_cast<std::size_t>(numel) + 2, 0xABCD) {
    for (T& value : b) {
      value = std::abs(value);
    }
    for (T& value : c) {
      value = std::abs(value);
    }
  }

  static std::vector<T> made(std::int64_t numel, int seed) {
    const testing::Bytes bytes = testing::make_input(DtypeOf<T>::kValue, numel + 2, seed);
    std::vector<T> values(static_cast<std::size_t>(numel) + 2);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  UpdateArrays arrays() {
    return {.dtype = DtypeOf<T>::kValue,
            .numel = static_cast<std::int64_t>(parameter.size()) - 2,
            .parameter = parameter.data() + 1,
            .gradient = gradient.data() + 1,
            .states = {a.data() + 1, b.data() + 1, c.data() + 1}};
  }

  std::vector<T> parameter, gradient, a, b, c;
  std::vector<std::uint16_t> low;
};

// The formula, element by element.
template <class T>
void expect_formula(std::int64_t numel, Dtype low_dtype, bool low) {
  Memory<T> memory(numel);
  Memory<T> expected(numel);
  const by_elements::MadeUpRule<T> rule(kConstants);
  for (std::size_t i = 1; i <= static_cast<std::size_t>(numel); ++i) {
    expected.parameter[i] = rule(
        expected.parameter[i], expected.gradient[i], expected.a[i], expected.b[i], expected.c[i]);
    if (low) {
      const auto value = static_cast<float>(expected.parameter[i]);
      expected.low[i] = low_dtype == Dtype::kFloat16 ? testing::nearest_half(value)
                                                     : testing::nearest_bfloat16(value);
    }
  }
  UpdateArrays arrays = memory.arrays();
  arrays.low_dtype = low_dtype;
  arrays.low = low ? memory.low.data() + 1 : nullptr;
  by_vectors::update_made_up(arrays, kConstants);
  const auto same = [&](const std::vector<T>& found, const std::vector<T>& wanted) {
    return std::memcmp(found.data(), wanted.data(), found.size() * sizeof(T)) == 0;
  };
  EXPECT_TRUE(same(memory.parameter, expected.parameter)) << numel;
  EXPECT_TRUE(same(memory.gradient, expected.gradient)) << numel;
  EXPECT_TRUE(same(memory.a, expected.a) && same(memory.b, expected.b) &&
              same(memory.c, expected.c))
      << numel;
  EXPECT_EQ(memory.low, expected.low) << numel;
}

TEST(Update, IsTheFormulaForEveryElement) {
  for (std::int64_t numel = 0; numel < 80; ++numel) {
    expect_formula<float>(numel, Dtype::kBFloat16, false);
    expect_formula<float>(numel, Dtype::kBFloat16, true);
    expect_formula<float>(numel, Dtype::kFloat16, true);
    expect_formula<double>(numel, Dtype::kBFloat16, false);
  }
}

TEST(Update, CanLeaveEverythingAsItIsAndPutItsResultElsewhere) {
  for (const std::int64_t numel : {1, 8, 39}) {
    Memory<float> memory(numel);
    const Memory<float> before(numel);
    std::vector<float> result(static_cast<std::size_t>(numel) + 1, -1.0F);
    UpdateArrays arrays = memory.arrays();
    arrays.result = result.data();
    by_vectors::look_made_up(arrays, kConstants);
    const by_elements::MadeUpLook<float> look(kConstants);
    for (std::size_t i = 0; i < static_cast<std::size_t>(numel); ++i) {
      float a = before.a[i + 1];
      EXPECT_EQ(result[i], look(before.parameter[i + 1], before.gradient[i + 1], a, a));
    }
    EXPECT_EQ(result.back(), -1.0F);
    EXPECT_EQ(memory.parameter, before.parameter);
    EXPECT_EQ(memory.a, before.a);
  }
}

}  // namespace
}  // namespace trireme
#endif  // HWY_ONCE
