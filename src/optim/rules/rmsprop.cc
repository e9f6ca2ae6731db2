#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/rmsprop.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

// States: the mean square, then the momentum and the mean, those of them that are used.
template <class T, bool kMomentum, bool kCentered>
struct RmspropFormula {
  static constexpr bool kMovesStates = true;
  RmspropFormula(const GradientTransform& transform, const PlainStep<RmspropOptions>& s)
      : gradients(transform, s.options.weight_decay, s.options.l1),
        moving(s.options.alpha),
        lr(static_cast<T>(s.lr)),
        eps(static_cast<T>(s.options.eps)),
        momentum(static_cast<T>(s.options.momentum)) {}

  HWY_INLINE Lanes<T> operator()(
      Lanes<T> p, Lanes<T> g, Lanes<T>& square, Lanes<T>& b, Lanes<T>& c) const {
    g = gradients(g, p);
    square = moving(square, hn::Mul(g, g));
    auto variance = square;
    if constexpr (kCentered) {
      Lanes<T>& mean = kMomentum ? c : b;
      mean = moving(mean, g);
      variance = hn::Sub(square, hn::Mul(mean, mean));
      // Rounding can make it negative, where it has no root.
      variance = hn::IfThenElse(hn::Lt(variance, all(T{0})), all(T{0}), variance);
    }
    const auto step = hn::Div(g, hn::Add(hn::Sqrt(variance), all(eps)));
    if constexpr (kMomentum) {
      b = hn::Add(hn::Mul(all(momentum), b), step);
      return hn::Sub(p, hn::Mul(all(lr), b));
    } else {
      return hn::Sub(p, hn::Mul(all(lr), step));
    }
  }

  Gradients<T> gradients;
  Moving<T> moving;
  T lr, eps, momentum;
};

template <class T>
using PlainRmsprop = RmspropFormula<T, false, false>;
template <class T>
using MomentumRmsprop = RmspropFormula<T, true, false>;
template <class T>
using CenteredRmsprop = RmspropFormula<T, false, true>;
template <class T>
using WholeRmsprop = RmspropFormula<T, true, true>;

}  // namespace

void rmsprop(const RmspropOptions& options,
             const ParameterSlice& slice,
             const GradientTransform& transform,
             double lr) {
  const PlainStep<RmspropOptions> step{options, lr};
  if (options.momentum != 0 && options.centered) {
    update_with<WholeRmsprop, 3>(slice, transform, step);
  } else if (options.momentum != 0) {
    update_with<MomentumRmsprop, 2>(slice, transform, step);
  } else if (options.centered) {
    update_with<CenteredRmsprop, 2>(slice, transform, step);
  } else {
    update_with<PlainRmsprop, 1>(slice, transform, step);
  }
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {

HWY_EXPORT(rmsprop);

template <>
const Definition<RmspropOptions>& definition_of<RmspropOptions>() {
  using O = RmspropOptions;
  static const Definition<O> definition{
      .name = "rmsprop",
      .fields = {{"lr", &O::lr},
                 {"alpha", &O::alpha, Bound::kBeta},
                 {"eps", &O::eps},
                 {"weight_decay", &O::weight_decay},
                 {"momentum", &O::momentum},
                 {"l1", &O::l1},
                 {"centered", &O::centered}},
      .states =
          [](const O& o, const ParameterInfo&) {
            std::vector<OptimizerState> states{"square_avg"};
            if (o.momentum != 0) {
              states.emplace_back("momentum_buffer");
            }
            if (o.centered) {
              states.emplace_back("grad_avg");
            }
            return states;
          },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            HWY_DYNAMIC_DISPATCH(rmsprop)(o, slice, transform, lr);
          }};
  return definition;
}

}  // namespace detail

template class OptimizerOf<RmspropOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
