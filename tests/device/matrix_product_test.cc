#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "support/reference.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using device::Product;

template <class T>
std::vector<T> made(std::int64_t numel, int seed) {
  const testing::Bytes bytes = testing::make_input(DtypeOf<T>::kValue, numel, seed);
  std::vector<T> values(static_cast<std::size_t>(numel));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// As the definition has it, one operation after another.
template <class T>
std::vector<T> expected_of(const Product& p, std::vector<T> c) {
  const auto* a = static_cast<const T*>(p.a);
  const auto* b = static_cast<const T*>(p.b);
  const auto alpha = static_cast<T>(p.alpha);
  const auto beta = static_cast<T>(p.beta);
  for (std::int64_t i = 0; i < p.rows; ++i) {
    for (std::int64_t j = 0; j < p.columns; ++j) {
      volatile T sum = 0;
      for (std::int64_t k = 0; k < p.depth; ++k) {
        volatile const T term = a[p.a_transposed ? k * p.rows + i : i * p.depth + k] *
                                b[p.b_transposed ? j * p.depth + k : k * p.columns + j];
        sum = sum + term;
      }
      T& element = c[static_cast<std::size_t>(i * p.columns + j)];
      volatile const T scaled = alpha * sum;
      volatile const T kept = beta * element;
      element = beta == 0 ? scaled : scaled + kept;
    }
  }
  return c;
}

template <class T>
void expect_product(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  const auto a = made<T>(rows * depth, 1);
  const auto b = made<T>(depth * columns, 2);
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      for (const double beta : {0.0, -0.75}) {
        std::vector<T> c = made<T>(rows * columns, 3);
        const Product product{.dtype = DtypeOf<T>::kValue,
                              .rows = rows,
                              .columns = columns,
                              .depth = depth,
                              .a = a.data(),
                              .b = b.data(),
                              .c = c.data(),
                              .a_transposed = a_transposed,
                              .b_transposed = b_transposed,
                              .alpha = beta == 0 ? 1 : 1.3,
                              .beta = beta};
        const auto expected = expected_of(product, c);
        device::host().multiply(product);
        ASSERT_EQ(std::memcmp(c.data(), expected.data(), c.size() * sizeof(T)), 0)
            << rows << " x " << depth << " x " << columns << ", transposed " << a_transposed << " "
            << b_transposed << ", beta " << beta;
      }
    }
  }
}

TEST(Multiply, IsTheChainOfTermsForEveryShape) {
  for (const std::int64_t rows : {1, 3, 4, 5, 9}) {
    for (const std::int64_t columns : {1, 7, 16, 31, 33, 70}) {
      for (const std::int64_t depth : {0, 1, 2, 50}) {
        expect_product<float>(rows, columns, depth);
        expect_product<double>(rows, columns, depth);
      }
    }
  }
  expect_product<float>(130, 65, 67);  // more rows than are packed at a time
  expect_product<double>(257, 34, 20);
  expect_product<float>(300, 4, 70);  // fewer columns than lanes: transposed
  expect_product<double>(67, 3, 130);
  expect_product<float>(0, 5, 5);
  expect_product<float>(5, 0, 5);
}

TEST(Multiply, HasTheSameBitsHoweverRowsAreDivided) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kColumns = 41;
  constexpr std::int64_t kDepth = 29;
  const auto a = made<float>(kRows * kDepth, 1);
  const auto b = made<float>(kDepth * kColumns, 2);
  const auto multiplied = [&](std::int64_t cut) {
    std::vector<float> c(kRows * kColumns);
    for (const auto& [first, last] :
         {std::pair<std::int64_t, std::int64_t>{0, cut}, {cut, kRows}}) {
      device::host().multiply({.rows = last - first,
                               .columns = kColumns,
                               .depth = kDepth,
                               .a = a.data() + first * kDepth,
                               .b = b.data(),
                               .c = c.data() + first * kColumns});
    }
    return c;
  };
  const auto whole = multiplied(0);
  for (std::int64_t cut = 1; cut < kRows; ++cut) {
    ASSERT_EQ(std::memcmp(multiplied(cut).data(), whole.data(), whole.size() * sizeof(float)), 0);
  }
}

// Newton and Schulz, as Muon takes it: what comes out has singular values near 1.
TEST(Multiply, OrthogonalisesAMatrix) {
  constexpr std::int64_t kRows = 6;
  constexpr std::int64_t kColumns = 20;
  auto x = made<double>(kRows * kColumns, 8);
  double square = 0;
  for (const double value : x) {
    square += value * value;
  }
  for (double& value : x) {
    value /= std::sqrt(square);
  }
  std::vector<double> gram(kRows * kRows);
  const auto take_gram = [&] {
    device::host().multiply({.dtype = Dtype::kFloat64,
                             .rows = kRows,
                             .columns = kRows,
                             .depth = kColumns,
                             .a = x.data(),
                             .b = x.data(),
                             .c = gram.data(),
                             .b_transposed = true});
  };
  for (int i = 0; i < 40; ++i) {  // x = 1.5 x - 0.5 (x x^T) x
    take_gram();
    std::vector<double> next = x;
    device::host().multiply({.dtype = Dtype::kFloat64,
                             .rows = kRows,
                             .columns = kColumns,
                             .depth = kRows,
                             .a = gram.data(),
                             .b = x.data(),
                             .c = next.data(),
                             .alpha = -0.5,
                             .beta = 1.5});
    x = next;
  }
  take_gram();
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kRows; ++j) {
      EXPECT_NEAR(gram[static_cast<std::size_t>(i * kRows + j)], i == j ? 1 : 0, 1e-9);
    }
  }
}

TEST(Multiply, RefusesOtherTypes) {
  EXPECT_THROW(device::host().multiply({.dtype = Dtype::kBFloat16}), InternalError);
}

}  // namespace
}  // namespace trireme
