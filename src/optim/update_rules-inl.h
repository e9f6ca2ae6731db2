// The rules, one element wide: from parameter, gradient and states to the new parameter, on
// vectors. Included once per instruction set, after highway.h (hence the toggling guard, Highway's
// way).

#if defined(TRIREME_OPTIM_UPDATE_RULES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPTIM_UPDATE_RULES_INL_H
#undef TRIREME_OPTIM_UPDATE_RULES_INL_H
#else
#define TRIREME_OPTIM_UPDATE_RULES_INL_H
#endif

#include <cmath>

#include <hwy/highway.h>

#include "optim/update_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Lanes = hn::Vec<hn::ScalableTag<T>>;

// A constant in every lane. Rules keep their constants as scalars, because vectors of machines with
// lengths known only at run time cannot be members; the compiler moves this out of the loops.
template <class T>
HWY_INLINE Lanes<T> all(T value) {
  return hn::Set(hn::ScalableTag<T>(), value);
}

// Prepares gradients: the transform, then weight decay and L1, skipping what does nothing so that
// the common case costs nothing. The flags are constants of the whole pass.
template <class T>
class Gradients {
 public:
  Gradients(const GradientTransform& transform, double weight_decay, double l1)
      : divisor_(static_cast<T>(transform.divisor)),
        factor_(static_cast<T>(transform.unscale * transform.clip_factor)),
        bound_(static_cast<T>(transform.clip_value)),
        decay_(static_cast<T>(weight_decay)),
        l1_(static_cast<T>(l1)),
        divides_(transform.divisor != 1),
        scales_(transform.unscale * transform.clip_factor != 1),
        bounds_(transform.clip_value > 0),
        decays_(weight_decay != 0),
        l1_used_(l1 != 0) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> gradient, Lanes<T> parameter) const {
    if (divides_) {
      gradient = hn::Div(gradient, all(divisor_));
    }
    if (scales_) {
      gradient = hn::Mul(gradient, all(factor_));
    }
    if (bounds_) {
      // Masks, not Min and Max: a NaN must stay one on every machine.
      gradient = hn::IfThenElse(hn::Gt(gradient, all(bound_)), all(bound_), gradient);
      gradient =
          hn::IfThenElse(hn::Lt(gradient, hn::Neg(all(bound_))), hn::Neg(all(bound_)), gradient);
    }
    if (decays_) {
      gradient = hn::Add(gradient, hn::Mul(all(decay_), parameter));
    }
    if (l1_used_) {
      gradient = hn::Add(gradient, hn::Mul(all(l1_), sign(parameter)));
    }
    return gradient;
  }

  // -1, 0 or 1.
  static HWY_INLINE Lanes<T> sign(Lanes<T> value) {
    const hn::ScalableTag<T> d;
    const auto magnitude = hn::IfThenElseZero(hn::Ne(value, hn::Zero(d)), hn::Set(d, T{1}));
    return hn::CopySign(magnitude, value);
  }

 private:
  T divisor_, factor_, bound_, decay_, l1_;
  bool divides_, scales_, bounds_, decays_, l1_used_;
};

template <class T>
struct SgdRule {
  static constexpr bool kMovesStates = true;
  SgdRule(const GradientTransform& transform, const SgdStep& s)
      : gradients(transform, s.weight_decay, s.l1),
        lr(static_cast<T>(s.lr)),
        momentum(static_cast<T>(s.momentum)),
        share(static_cast<T>(s.gradient_share)),
        has_momentum(s.momentum != 0),
        nesterov(s.nesterov),
        first(s.first) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>&) const {
    g = gradients(g, p);
    if (has_momentum) {
      m = first ? g : hn::Add(hn::Mul(all(momentum), m), hn::Mul(all(share), g));
      g = nesterov ? hn::Add(g, hn::Mul(all(momentum), m)) : m;
    }
    return hn::Sub(p, hn::Mul(all(lr), g));
  }

  Gradients<T> gradients;
  T lr, momentum, share;
  bool has_momentum, nesterov, first;
};

template <class T>
struct AdamRule {
  static constexpr bool kMovesStates = true;
  AdamRule(const GradientTransform& transform, const AdamStep& s)
      : gradients(transform, s.weight_decay, s.l1),
        beta1(static_cast<T>(s.beta1)),
        rest1(static_cast<T>(s.rest1)),
        beta2(static_cast<T>(s.beta2)),
        rest2(static_cast<T>(s.rest2)),
        // m / (sqrt(v) / sqrt(c) + eps) = m sqrt(c) / (sqrt(v) + eps sqrt(c)): one division, not
        // two
        eps(static_cast<T>(s.eps * s.root_correction)),
        scaled_step(static_cast<T>(s.step_size * s.root_correction)),
        shrink(static_cast<T>(s.shrink)),
        shrinks(s.shrink != 1) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& v) const {
    g = gradients(g, p);
    m = hn::Add(hn::Mul(all(beta1), m), hn::Mul(all(rest1), g));
    v = hn::Add(hn::Mul(all(beta2), v), hn::Mul(all(rest2), hn::Mul(g, g)));
    if (shrinks) {
      p = hn::Mul(p, all(shrink));
    }
    return hn::Sub(p, hn::Div(hn::Mul(all(scaled_step), m), hn::Add(hn::Sqrt(v), all(eps))));
  }

  Gradients<T> gradients;
  T beta1, rest1, beta2, rest2, eps, scaled_step, shrink;
  bool shrinks;
};

template <class T>
struct AdagradRule {
  static constexpr bool kMovesStates = true;
  AdagradRule(const GradientTransform& transform, const AdagradStep& s)
      : gradients(transform, s.weight_decay, s.l1),
        lr(static_cast<T>(s.lr)),
        eps(static_cast<T>(s.eps)) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& sum, Lanes<T>&) const {
    g = gradients(g, p);
    sum = hn::Add(sum, hn::Mul(g, g));
    return hn::Sub(p, hn::Div(hn::Mul(all(lr), g), hn::Add(hn::Sqrt(sum), all(eps))));
  }

  Gradients<T> gradients;
  T lr, eps;
};

template <class T>
struct LionRule {
  static constexpr bool kMovesStates = true;
  LionRule(const GradientTransform& transform, const LionStep& s)
      : gradients(transform, 0, s.l1),
        lr(static_cast<T>(s.lr)),
        beta1(static_cast<T>(s.beta1)),
        rest1(static_cast<T>(s.rest1)),
        beta2(static_cast<T>(s.beta2)),
        rest2(static_cast<T>(s.rest2)),
        shrink(static_cast<T>(s.shrink)),
        shrinks(s.shrink != 1) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>&) const {
    g = gradients(g, p);
    const auto direction =
        Gradients<T>::sign(hn::Add(hn::Mul(all(beta1), m), hn::Mul(all(rest1), g)));
    m = hn::Add(hn::Mul(all(beta2), m), hn::Mul(all(rest2), g));
    if (shrinks) {
      p = hn::Mul(p, all(shrink));
    }
    return hn::Sub(p, hn::Mul(all(lr), direction));
  }

  Gradients<T> gradients;
  T lr, beta1, rest1, beta2, rest2, shrink;
  bool shrinks;
};

// The direction of LAMB's step, from moments that are already up to date.
template <class T>
struct LambDirection {
  explicit LambDirection(const LambStep& s)
      : first_factor(static_cast<T>(1 / s.first_correction)),
        second_factor(static_cast<T>(1 / std::sqrt(s.second_correction))),
        eps(static_cast<T>(s.eps)),
        decay(static_cast<T>(s.weight_decay)) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> m, Lanes<T> v) const {
    const auto root = hn::Mul(hn::Sqrt(v), all(second_factor));
    const auto direction = hn::Div(hn::Mul(m, all(first_factor)), hn::Add(root, all(eps)));
    return hn::Add(direction, hn::Mul(all(decay), p));
  }

  T first_factor, second_factor, eps, decay;
};

// LAMB's first pass: the moments move, and the direction is the result.
template <class T>
struct LambMeasureRule {
  static constexpr bool kMovesStates = true;
  LambMeasureRule(const GradientTransform& transform, const LambStep& s)
      : gradients(transform, 0, s.l1),
        beta1(static_cast<T>(s.beta1)),
        rest1(static_cast<T>(s.rest1)),
        beta2(static_cast<T>(s.beta2)),
        rest2(static_cast<T>(s.rest2)),
        direction(s) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& v) const {
    g = gradients(g, p);
    m = hn::Add(hn::Mul(all(beta1), m), hn::Mul(all(rest1), g));
    v = hn::Add(hn::Mul(all(beta2), v), hn::Mul(all(rest2), hn::Mul(g, g)));
    return direction(p, m, v);
  }

  Gradients<T> gradients;
  T beta1, rest1, beta2, rest2;
  LambDirection<T> direction;
};

// LAMB's second pass: the same direction again, now with its length.
template <class T>
struct LambApplyRule {
  LambApplyRule(const GradientTransform&, const LambStep& s)
      : rate(static_cast<T>(s.rate)), direction(s) {}

  static constexpr bool kMovesStates = false;
  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T>, Lanes<T>& m, Lanes<T>& v) const {
    return hn::Sub(p, hn::Mul(all(rate), direction(p, m, v)));
  }

  T rate;
  LambDirection<T> direction;
};

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
