#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/directions.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cmath>
#include <limits>

#include "optim/directions.h"
#include "optim/element_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

struct DirectionStep {
  double shrink = 1;
  double rate = 0;
  double divisor = 1;
};

#include "optim/formulas/directions.h"

}  // namespace

void transform_gradient(const ParameterSlice& slice,
                        const GradientTransform& transform,
                        void* gradient) {
  look_with<TransformedGradient, 0>(slice, transform, DirectionStep{}, gradient);
}

void go_along(const ParameterSlice& slice, double shrink, double rate) {
  update_with<DirectionRule, 0>(slice, GradientTransform{}, DirectionStep{shrink, rate});
}

void divide(const ParameterSlice& direction, double divisor) {
  update_with<DividedDirection, 0>(
      direction, GradientTransform{}, DirectionStep{.divisor = divisor});
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::detail {

HWY_EXPORT(transform_gradient);
HWY_EXPORT(go_along);
HWY_EXPORT(divide);

void transformed_gradient(const ParameterSlice& slice,
                          const GradientTransform& transform,
                          void* gradient) {
  HWY_DYNAMIC_DISPATCH(transform_gradient)(slice, transform, gradient);
}

void apply_direction(const ParameterSlice& slice,
                     const void* direction,
                     double shrink,
                     double rate) {
  ParameterSlice along = slice;
  along.gradient = direction;
  HWY_DYNAMIC_DISPATCH(go_along)(along, shrink, rate);
}

void divide_direction(const Span& direction, double divisor) {
  ParameterSlice slice;
  slice.dtype = direction.dtype();
  slice.master = direction.bytes();
  slice.gradient = direction.bytes();
  slice.numel = direction.numel();
  slice.device = direction.device();
  HWY_DYNAMIC_DISPATCH(divide)(slice, divisor);
}

SquareQuanta quanta_or_nan(double largest, std::int64_t count) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return std::isfinite(largest) ? SquareQuanta::of(largest, count) : SquareQuanta{nan, nan};
}

}  // namespace trireme::detail
#endif  // HWY_ONCE
