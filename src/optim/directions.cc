#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/directions.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/directions.h"
#include "optim/element_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

struct DirectionStep {
  double shrink = 1;
  double rate = 0;
};

template <class T>
struct TransformedGradient {
  static constexpr bool kMovesStates = false;
  TransformedGradient(const GradientTransform& transform, const DirectionStep&)
      : gradients(transform, 0, 0) {}
  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& /*a*/, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    return gradients(g, p);
  }
  Gradients<T> gradients;
};

// What it is given as gradient is the direction.
template <class T>
struct DirectionRule {
  static constexpr bool kMovesStates = false;
  DirectionRule(const GradientTransform&, const DirectionStep& s)
      : shrink(static_cast<T>(s.shrink)), rate(static_cast<T>(s.rate)) {}
  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> u, Lanes<T>& /*a*/, Lanes<T>& /*b*/, Lanes<T>& /*c*/) const {
    return hn::Sub(hn::Mul(p, all(shrink)), hn::Mul(all(rate), u));
  }
  T shrink, rate;
};

}  // namespace

void transform_gradient(const ParameterSlice& slice,
                        const GradientTransform& transform,
                        void* gradient) {
  look_with<TransformedGradient, 0>(slice, transform, DirectionStep{}, gradient);
}

void go_along(const ParameterSlice& slice, double shrink, double rate) {
  update_with<DirectionRule, 0>(slice, GradientTransform{}, DirectionStep{shrink, rate});
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::detail {

HWY_EXPORT(transform_gradient);
HWY_EXPORT(go_along);

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

}  // namespace trireme::detail
#endif  // HWY_ONCE
