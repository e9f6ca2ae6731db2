#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/square_sum.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/optim/square_sum.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<double>;

// Elements as the update will see them, in their own precision, then widened: the square of a
// float32 is exact in double.
HWY_INLINE hn::Vec<Wide> load_scaled(const float* from, float divisor, float factor, bool scales) {
  const hn::Rebind<float, Wide> narrow;
  auto value = hn::LoadU(narrow, from);
  if (scales) {
    value = hn::Mul(hn::Div(value, hn::Set(narrow, divisor)), hn::Set(narrow, factor));
  }
  return hn::PromoteTo(Wide(), value);
}

HWY_INLINE hn::Vec<Wide> load_scaled(const double* from,
                                     double divisor,
                                     double factor,
                                     bool scales) {
  auto value = hn::LoadU(Wide(), from);
  if (scales) {
    value = hn::Mul(hn::Div(value, hn::Set(Wide(), divisor)), hn::Set(Wide(), factor));
  }
  return value;
}

// Calls visit(lanes) for all elements; the ragged end is padded with zeros, which add nothing.
template <class T, class Visit>
HWY_INLINE void for_each_vector(const T* data,
                                std::size_t numel,
                                const Scaling& scaling,
                                Visit visit) {
  const std::size_t lanes = hn::Lanes(Wide());
  const bool scales = scaling.divisor != 1 || scaling.unscale != 1;
  const auto divisor = static_cast<T>(scaling.divisor);
  const auto factor = static_cast<T>(scaling.unscale);
  std::size_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    visit(load_scaled(data + i, divisor, factor, scales));
  }
  if (i < numel) {
    HWY_ALIGN T padded[hn::MaxLanes(Wide())] = {};
    std::memcpy(padded, data + i, (numel - i) * sizeof(T));
    visit(load_scaled(padded, divisor, factor, scales));
  }
}

template <class T>
double largest_of(const T* data, std::size_t numel, const Scaling& scaling) {
  const Wide d;
  auto largest = hn::Zero(d);
  const auto infinity = hn::Set(d, std::numeric_limits<double>::infinity());
  for_each_vector(data, numel, scaling, [&](hn::Vec<Wide> value) HWY_ATTR {
    const auto magnitude = hn::IfThenElse(hn::IsNaN(value), infinity, hn::Abs(value));
    largest = hn::IfThenElse(hn::Gt(magnitude, largest), magnitude, largest);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

template <class T>
SquareSum sum_of(const T* data,
                 std::size_t numel,
                 const SquareQuanta& quanta,
                 const Scaling& scaling) {
  const Wide d;
  const auto coarse = hn::Set(d, quanta.coarse);
  const auto fine = hn::Set(d, quanta.fine);
  auto coarse_sum = hn::Zero(d);
  auto fine_sum = hn::Zero(d);
  for_each_vector(data, numel, scaling, [&](hn::Vec<Wide> value) HWY_ATTR {
    const auto square = hn::Mul(value, value);
    const auto multiple = hn::Sub(hn::Add(square, coarse), coarse);
    const auto rest = hn::Sub(square, multiple);
    coarse_sum = hn::Add(coarse_sum, multiple);
    fine_sum = hn::Add(fine_sum, hn::Sub(hn::Add(rest, fine), fine));
  });
  return {hn::GetLane(hn::SumOfLanes(d, coarse_sum)), hn::GetLane(hn::SumOfLanes(d, fine_sum))};
}

double largest(Dtype dtype, const void* data, std::size_t numel, const Scaling& scaling) {
  return dtype == Dtype::kFloat64 ? largest_of(static_cast<const double*>(data), numel, scaling)
                                  : largest_of(static_cast<const float*>(data), numel, scaling);
}

SquareSum squares(Dtype dtype,
                  const void* data,
                  std::size_t numel,
                  const SquareQuanta& quanta,
                  const Scaling& scaling) {
  return dtype == Dtype::kFloat64 ? sum_of(static_cast<const double*>(data), numel, quanta, scaling)
                                  : sum_of(static_cast<const float*>(data), numel, quanta, scaling);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {
namespace {

HWY_EXPORT(largest);
HWY_EXPORT(squares);

// Dispatch happens in the namespace of the exported functions, or a build for one instruction set
// alone would not find them.
double best_largest(Dtype dtype, const void* data, std::size_t numel, const Scaling& scaling) {
  return HWY_DYNAMIC_DISPATCH(largest)(dtype, data, numel, scaling);
}

SquareSum best_squares(Dtype dtype,
                       const void* data,
                       std::size_t numel,
                       const SquareQuanta& quanta,
                       const Scaling& scaling) {
  return HWY_DYNAMIC_DISPATCH(squares)(dtype, data, numel, quanta, scaling);
}

}  // namespace
}  // namespace detail

namespace {

void check_dtype(Dtype dtype) {
  TRIREME_CHECK(dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64,
                "norms are computed for float32 and float64, found ",
                dtype_name(dtype));
}

}  // namespace

// With 2^e >= largest^2 and L = ceil(log2(count)) + 1, adding and subtracting 1.5 * 2^(e + L)
// rounds a square to a multiple of 2^(e + L - 52). `count` such multiples stay below 2^(e + L - 1),
// 51 bits above the quantum: their sum is exact. The rest is below half that quantum, and is
// treated the same way one level down.
SquareQuanta SquareQuanta::of(double largest, std::int64_t count) {
  if (largest == 0 || count == 0) {
    return {0, 0};
  }
  TRIREME_CHECK(std::isfinite(largest),
                "a norm with infinite elements has no quanta: look at the largest first");
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  int level = 1;
  while ((std::int64_t{1} << (level - 1)) < count) {
    ++level;
  }
  const double coarse = std::ldexp(1.5, 2 * exponent + level);
  return {coarse, std::ldexp(coarse, level - 52)};
}

double SquareSum::norm() const {
  return std::sqrt(total());
}

double largest_magnitude(Dtype dtype,
                         const void* data,
                         std::int64_t numel,
                         const Scaling& scaling) {
  check_dtype(dtype);
  return detail::best_largest(dtype, data, static_cast<std::size_t>(numel), scaling);
}

SquareSum sum_squares(Dtype dtype,
                      const void* data,
                      std::int64_t numel,
                      const SquareQuanta& quanta,
                      const Scaling& scaling) {
  check_dtype(dtype);
  if (quanta.coarse == 0) {
    return {};
  }
  return detail::best_squares(dtype, data, static_cast<std::size_t>(numel), quanta, scaling);
}

double clip_factor(double norm, double max_norm) {
  return std::min(max_norm / (norm + 1e-6), 1.0);  // in this order a NaN stays one, as in torch
}

}  // namespace trireme
#endif  // HWY_ONCE
