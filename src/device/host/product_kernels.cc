// Compiled once per instruction set by Highway's foreach_target. Each lane has an element of the
// result to itself and adds up its terms in order, unfused, so the bits are the same for all vector
// widths; speed comes from eight vectors of elements that are in registers at a time.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "device/host/product_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <utility>
#include <vector>

#include "device/host/product_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kTileRows = 4;
constexpr std::size_t kPanelRows = 128;    // of a, which stay in the cache while b passes by
constexpr std::size_t kStepsAtATime = 16;  // of columns that lie along their steps: a line of each

// A tile of 4 rows and two vectors of columns. `a` has the four elements of each step side by side,
// `b` the two vectors. (Named one by one: vectors of some machines cannot be in arrays.)
template <class T>
void multiply_tile(const T* HWY_RESTRICT a,
                   const T* HWY_RESTRICT b,
                   std::size_t depth,
                   T* HWY_RESTRICT tile) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  auto sum00 = hn::Zero(d), sum01 = hn::Zero(d);
  auto sum10 = hn::Zero(d), sum11 = hn::Zero(d);
  auto sum20 = hn::Zero(d), sum21 = hn::Zero(d);
  auto sum30 = hn::Zero(d), sum31 = hn::Zero(d);
  for (std::size_t k = 0; k < depth; ++k) {
    const auto b0 = hn::LoadU(d, b);
    const auto b1 = hn::LoadU(d, b + lanes);
    const auto a0 = hn::Set(d, a[0]);
    sum00 = hn::Add(sum00, hn::Mul(a0, b0));
    sum01 = hn::Add(sum01, hn::Mul(a0, b1));
    const auto a1 = hn::Set(d, a[1]);
    sum10 = hn::Add(sum10, hn::Mul(a1, b0));
    sum11 = hn::Add(sum11, hn::Mul(a1, b1));
    const auto a2 = hn::Set(d, a[2]);
    sum20 = hn::Add(sum20, hn::Mul(a2, b0));
    sum21 = hn::Add(sum21, hn::Mul(a2, b1));
    const auto a3 = hn::Set(d, a[3]);
    sum30 = hn::Add(sum30, hn::Mul(a3, b0));
    sum31 = hn::Add(sum31, hn::Mul(a3, b1));
    a += kTileRows;
    b += 2 * lanes;
  }
  const auto store = [&](std::size_t row, auto left, auto right) HWY_ATTR {
    hn::StoreU(left, d, tile + row * 2 * lanes);
    hn::StoreU(right, d, tile + row * 2 * lanes + lanes);
  };
  store(0, sum00, sum01);
  store(1, sum10, sum11);
  store(2, sum20, sum21);
  store(3, sum30, sum31);
}

// `count` rows of a from `first` on, four at a time, step after step; zeros below the last row.
template <class T>
void pack_rows(const Product& p, std::size_t first, std::size_t count, T* to) {
  const auto* a = static_cast<const T*>(p.a);
  const auto rows = static_cast<std::size_t>(p.rows);
  const auto depth = static_cast<std::size_t>(p.depth);
  const std::size_t row_step = p.a_transposed ? 1 : depth;
  const std::size_t depth_step = p.a_transposed ? rows : 1;
  for (std::size_t tile = 0; tile < count; tile += kTileRows, to += kTileRows * depth) {
    for (std::size_t row = 0; row < kTileRows; ++row) {
      const T* from = a + (first + tile + row) * row_step;
      for (std::size_t k = 0; k < depth; ++k) {
        to[k * kTileRows + row] = tile + row < count ? from[k * depth_step] : T{0};
      }
    }
  }
}

// `count` columns of b from `first` on, of `width`, step after step; zeros beyond the last column.
template <class T>
void pack_columns(
    const Product& p, std::size_t first, std::size_t count, std::size_t width, T* to) {
  const auto* b = static_cast<const T*>(p.b);
  const auto columns = static_cast<std::size_t>(p.columns);
  const auto depth = static_cast<std::size_t>(p.depth);
  if (p.b_transposed) {
    for (std::size_t begin = 0; begin < depth; begin += kStepsAtATime) {
      const std::size_t end = std::min(begin + kStepsAtATime, depth);
      for (std::size_t column = 0; column < width; ++column) {
        const T* from = b + (first + column) * depth;
        for (std::size_t k = begin; k < end; ++k) {
          to[k * width + column] = column < count ? from[k] : T{0};
        }
      }
    }
    return;
  }
  for (std::size_t k = 0; k < depth; ++k) {
    const T* from = b + k * columns + first;
    std::fill(std::copy(from, from + count, to + k * width), to + (k + 1) * width, T{0});
  }
}

// Sums of a row of a tile, to places in the result that are `step` apart.
template <class T>
HWY_INLINE void put(const Product& p, const T* sums, std::size_t count, T* c, std::size_t step) {
  const auto alpha = static_cast<T>(p.alpha);
  const auto beta = static_cast<T>(p.beta);
  for (std::size_t j = 0; j < count; ++j) {
    const T product = alpha * sums[j];
    c[j * step] = beta == 0 ? product : product + beta * c[j * step];
  }
}

// With `transposed`, the result is stored as columns x rows.
template <class T>
void multiply_all(const Product& p, bool transposed) {
  const std::size_t width = 2 * hn::Lanes(hn::ScalableTag<T>());
  const auto rows = static_cast<std::size_t>(p.rows);
  const auto columns = static_cast<std::size_t>(p.columns);
  const auto depth = static_cast<std::size_t>(p.depth);
  std::vector<T> packed_rows(std::min(kPanelRows, rows + kTileRows) * depth);
  std::vector<T> packed_columns(width * depth);
  HWY_ALIGN T tile[kTileRows * 2 * hn::MaxLanes(hn::ScalableTag<T>())];
  for (std::size_t top = 0; top < rows; top += kPanelRows) {
    const std::size_t height = std::min(kPanelRows, rows - top);
    pack_rows(p, top, height, packed_rows.data());
    for (std::size_t left = 0; left < columns; left += width) {
      const std::size_t across = std::min(width, columns - left);
      pack_columns(p, left, across, width, packed_columns.data());
      for (std::size_t row = 0; row < height; row += kTileRows) {
        multiply_tile(packed_rows.data() + row * depth, packed_columns.data(), depth, tile);
        for (std::size_t i = 0; i < std::min(kTileRows, height - row); ++i) {
          const std::size_t at = top + row + i;
          const T* const sums = tile + i * width;
          T* const c = static_cast<T*>(p.c);
          if (transposed) {
            put(p, sums, across, c + left * rows + at, rows);
          } else {
            put(p, sums, across, c + at * columns + left, 1);
          }
        }
      }
    }
  }
}

// A few columns, as in a product with a factor of low rank, would leave most lanes without work:
// then rows are in the lanes, as columns of the transposed product, whose elements are the same
// chains.
template <class T>
void multiply_one_way(const Product& p) {
  const auto width = static_cast<std::int64_t>(2 * hn::Lanes(hn::ScalableTag<T>()));
  if (p.columns >= width || p.rows <= p.columns) {
    return multiply_all<T>(p, /*transposed=*/false);
  }
  Product turned = p;
  std::swap(turned.rows, turned.columns);
  std::swap(turned.a, turned.b);
  turned.a_transposed = !p.b_transposed;
  turned.b_transposed = !p.a_transposed;
  multiply_all<T>(turned, /*transposed=*/true);
}

void multiply(const Product& product) {
#if HWY_HAVE_FLOAT64
  if (product.dtype == Dtype::kFloat64) {
    return multiply_one_way<double>(product);
  }
#endif
  return multiply_one_way<float>(product);
}

}  // namespace trireme::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::device {

HWY_EXPORT(multiply);

void multiply_matrices(const Product& product) {
  HWY_DYNAMIC_DISPATCH(multiply)(product);
}

}  // namespace trireme::device
#endif  // HWY_ONCE
