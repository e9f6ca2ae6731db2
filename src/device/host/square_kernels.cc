#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "device/host/square_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cstring>
#include <limits>

#include "device/host/square_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::device::HWY_NAMESPACE {
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

}  // namespace trireme::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::device {
namespace {
HWY_EXPORT(largest);
HWY_EXPORT(squares);
}  // namespace

double largest_magnitude(Dtype dtype, const void* data, std::size_t numel, const Scaling& scaling) {
  return HWY_DYNAMIC_DISPATCH(largest)(dtype, data, numel, scaling);
}

SquareSum sum_squares(Dtype dtype,
                      const void* data,
                      std::size_t numel,
                      const SquareQuanta& quanta,
                      const Scaling& scaling) {
  return quanta.coarse == 0 ? SquareSum{}
                            : HWY_DYNAMIC_DISPATCH(squares)(dtype, data, numel, quanta, scaling);
}

}  // namespace trireme::device
#endif  // HWY_ONCE
