// The fused passes, compiled once per instruction set. Every element goes through the same vector
// instructions, the ragged end included; additions and multiplications are never fused, because
// not every machine can, and roots and quotients are exact, never estimates.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/update_kernels.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>

#include <hwy/cache_control.h>

#include "core/float_formats-inl.h"
#include "optim/update_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {

template <class T>
using Lanes = hn::Vec<hn::ScalableTag<T>>;

// Prepares gradients: the transform, then weight decay and L1, skipping what does nothing so that
// the common case costs nothing. The flags are constants of the whole pass.
template <class T>
class Gradients {
 public:
  Gradients(const GradientTransform& transform, double weight_decay, double l1)
      : divisor_(hn::Set(d_, static_cast<T>(transform.divisor))),
        factor_(hn::Set(d_, static_cast<T>(transform.unscale * transform.clip_factor))),
        bound_(hn::Set(d_, static_cast<T>(transform.clip_value))),
        decay_(hn::Set(d_, static_cast<T>(weight_decay))),
        l1_(hn::Set(d_, static_cast<T>(l1))),
        divides_(transform.divisor != 1),
        scales_(transform.unscale * transform.clip_factor != 1),
        bounds_(transform.clip_value > 0),
        decays_(weight_decay != 0),
        l1_used_(l1 != 0) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> gradient, Lanes<T> parameter) const {
    if (divides_) {
      gradient = hn::Div(gradient, divisor_);
    }
    if (scales_) {
      gradient = hn::Mul(gradient, factor_);
    }
    if (bounds_) {
      // Masks, not Min and Max: a NaN must stay one on every machine.
      gradient = hn::IfThenElse(hn::Gt(gradient, bound_), bound_, gradient);
      gradient = hn::IfThenElse(hn::Lt(gradient, hn::Neg(bound_)), hn::Neg(bound_), gradient);
    }
    if (decays_) {
      gradient = hn::Add(gradient, hn::Mul(decay_, parameter));
    }
    if (l1_used_) {
      gradient = hn::Add(gradient, hn::Mul(l1_, sign(parameter)));
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
  hn::ScalableTag<T> d_;
  Lanes<T> divisor_, factor_, bound_, decay_, l1_;
  bool divides_, scales_, bounds_, decays_, l1_used_;
};

template <class T>
struct SgdRule {
  static constexpr bool kMovesStates = true;
  SgdRule(const GradientTransform& transform, const SgdStep& s)
      : gradients(transform, s.weight_decay, s.l1),
        lr(hn::Set(d, static_cast<T>(s.lr))),
        momentum(hn::Set(d, static_cast<T>(s.momentum))),
        share(hn::Set(d, static_cast<T>(s.gradient_share))),
        has_momentum(s.momentum != 0),
        nesterov(s.nesterov),
        first(s.first) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>&) const {
    g = gradients(g, p);
    if (has_momentum) {
      m = first ? g : hn::Add(hn::Mul(momentum, m), hn::Mul(share, g));
      g = nesterov ? hn::Add(g, hn::Mul(momentum, m)) : m;
    }
    return hn::Sub(p, hn::Mul(lr, g));
  }

  hn::ScalableTag<T> d;
  Gradients<T> gradients;
  Lanes<T> lr, momentum, share;
  bool has_momentum, nesterov, first;
};

template <class T>
struct AdamRule {
  static constexpr bool kMovesStates = true;
  AdamRule(const GradientTransform& transform, const AdamStep& s)
      : gradients(transform, s.weight_decay, s.l1),
        beta1(hn::Set(d, static_cast<T>(s.beta1))),
        rest1(hn::Set(d, static_cast<T>(s.rest1))),
        beta2(hn::Set(d, static_cast<T>(s.beta2))),
        rest2(hn::Set(d, static_cast<T>(s.rest2))),
        // m / (sqrt(v) / sqrt(c) + eps) = m sqrt(c) / (sqrt(v) + eps sqrt(c)): one division, not
        // two
        eps(hn::Set(d, static_cast<T>(s.eps * s.root_correction))),
        scaled_step(hn::Set(d, static_cast<T>(s.step_size * s.root_correction))),
        shrink(hn::Set(d, static_cast<T>(s.shrink))),
        shrinks(s.shrink != 1) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& v) const {
    g = gradients(g, p);
    m = hn::Add(hn::Mul(beta1, m), hn::Mul(rest1, g));
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(rest2, hn::Mul(g, g)));
    if (shrinks) {
      p = hn::Mul(p, shrink);
    }
    return hn::Sub(p, hn::Div(hn::Mul(scaled_step, m), hn::Add(hn::Sqrt(v), eps)));
  }

  hn::ScalableTag<T> d;
  Gradients<T> gradients;
  Lanes<T> beta1, rest1, beta2, rest2, eps, scaled_step, shrink;
  bool shrinks;
};

template <class T>
struct AdagradRule {
  static constexpr bool kMovesStates = true;
  AdagradRule(const GradientTransform& transform, const AdagradStep& s)
      : gradients(transform, s.weight_decay, s.l1),
        lr(hn::Set(d, static_cast<T>(s.lr))),
        eps(hn::Set(d, static_cast<T>(s.eps))) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& sum, Lanes<T>&) const {
    g = gradients(g, p);
    sum = hn::Add(sum, hn::Mul(g, g));
    return hn::Sub(p, hn::Div(hn::Mul(lr, g), hn::Add(hn::Sqrt(sum), eps)));
  }

  hn::ScalableTag<T> d;
  Gradients<T> gradients;
  Lanes<T> lr, eps;
};

template <class T>
struct LionRule {
  static constexpr bool kMovesStates = true;
  LionRule(const GradientTransform& transform, const LionStep& s)
      : gradients(transform, 0, s.l1),
        lr(hn::Set(d, static_cast<T>(s.lr))),
        beta1(hn::Set(d, static_cast<T>(s.beta1))),
        rest1(hn::Set(d, static_cast<T>(s.rest1))),
        beta2(hn::Set(d, static_cast<T>(s.beta2))),
        rest2(hn::Set(d, static_cast<T>(s.rest2))),
        shrink(hn::Set(d, static_cast<T>(s.shrink))),
        shrinks(s.shrink != 1) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>&) const {
    g = gradients(g, p);
    const auto direction = Gradients<T>::sign(hn::Add(hn::Mul(beta1, m), hn::Mul(rest1, g)));
    m = hn::Add(hn::Mul(beta2, m), hn::Mul(rest2, g));
    if (shrinks) {
      p = hn::Mul(p, shrink);
    }
    return hn::Sub(p, hn::Mul(lr, direction));
  }

  hn::ScalableTag<T> d;
  Gradients<T> gradients;
  Lanes<T> lr, beta1, rest1, beta2, rest2, shrink;
  bool shrinks;
};

// The direction of LAMB's step, from moments that are already up to date.
template <class T>
struct LambDirection {
  explicit LambDirection(const LambStep& s)
      : first_factor(hn::Set(d, static_cast<T>(1 / s.first_correction))),
        second_factor(hn::Set(d, static_cast<T>(1 / std::sqrt(s.second_correction)))),
        eps(hn::Set(d, static_cast<T>(s.eps))),
        decay(hn::Set(d, static_cast<T>(s.weight_decay))) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> m, Lanes<T> v) const {
    const auto root = hn::Mul(hn::Sqrt(v), second_factor);
    const auto direction = hn::Div(hn::Mul(m, first_factor), hn::Add(root, eps));
    return hn::Add(direction, hn::Mul(decay, p));
  }

  hn::ScalableTag<T> d;
  Lanes<T> first_factor, second_factor, eps, decay;
};

// LAMB's first pass: the moments move, and the direction is the result.
template <class T>
struct LambMeasureRule {
  static constexpr bool kMovesStates = true;
  LambMeasureRule(const GradientTransform& transform, const LambStep& s)
      : gradients(transform, 0, s.l1),
        beta1(hn::Set(d, static_cast<T>(s.beta1))),
        rest1(hn::Set(d, static_cast<T>(s.rest1))),
        beta2(hn::Set(d, static_cast<T>(s.beta2))),
        rest2(hn::Set(d, static_cast<T>(s.rest2))),
        direction(s) {}

  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& m, Lanes<T>& v) const {
    g = gradients(g, p);
    m = hn::Add(hn::Mul(beta1, m), hn::Mul(rest1, g));
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(rest2, hn::Mul(g, g)));
    return direction(p, m, v);
  }

  hn::ScalableTag<T> d;
  Gradients<T> gradients;
  Lanes<T> beta1, rest1, beta2, rest2;
  LambDirection<T> direction;
};

// LAMB's second pass: the same direction again, now with its length.
template <class T>
struct LambApplyRule {
  LambApplyRule(const GradientTransform&, const LambStep& s)
      : rate(hn::Set(d, static_cast<T>(s.rate))), direction(s) {}

  static constexpr bool kMovesStates = false;
  HWY_INLINE Lanes<T> operator()(Lanes<T> p, Lanes<T>, Lanes<T>& m, Lanes<T>& v) const {
    return hn::Sub(p, hn::Mul(rate, direction(p, m, v)));
  }

  hn::ScalableTag<T> d;
  Lanes<T> rate;
  LambDirection<T> direction;
};

// Where one slice's arrays are while a pass walks over them.
template <class T>
struct Arrays {
  const T* parameter;
  const T* gradient;
  T* states[2];
  std::uint16_t* low;
  T* target;  // of the rule's result: the parameter again, except in LAMB's first pass
};

template <class T, int kStates, class Low, class Rule>
HWY_INLINE void update_lanes(const Rule& rule, const Arrays<T>& at, std::size_t i) {
  const hn::ScalableTag<T> d;
  auto first = kStates > 0 ? hn::LoadU(d, at.states[0] + i) : hn::Zero(d);
  auto second = kStates > 1 ? hn::LoadU(d, at.states[1] + i) : hn::Zero(d);
  const auto updated =
      rule(hn::LoadU(d, at.parameter + i), hn::LoadU(d, at.gradient + i), first, second);
  hn::StoreU(updated, d, at.target + i);
  if constexpr (kStates > 0 && Rule::kMovesStates) {
    hn::StoreU(first, d, at.states[0] + i);
  }
  if constexpr (kStates > 1 && Rule::kMovesStates) {
    hn::StoreU(second, d, at.states[1] + i);
  }
  if constexpr (!std::is_void_v<Low>) {
    Low::store(d, updated, at.low + i);
  }
}

template <class T, int kStates, class Low, class Rule>
void update_arrays(const Rule& rule, const Arrays<T>& arrays, std::size_t numel) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  // Four vectors at a time, asking for what comes a page later: the pass is bound by memory, and
  // the processor's own prefetcher does not follow this many streams.
  constexpr std::size_t kAhead = 1024 / sizeof(T);
  for (; i + 4 * lanes <= numel; i += 4 * lanes) {
    for (std::size_t line = 0; line < 4 * lanes; line += 64 / sizeof(T)) {
      hwy::Prefetch(arrays.parameter + i + kAhead + line);
      hwy::Prefetch(arrays.gradient + i + kAhead + line);
      for (int k = 0; k < kStates; ++k) {
        hwy::Prefetch(arrays.states[k] + i + kAhead + line);
      }
    }
    for (std::size_t k = 0; k < 4; ++k) {
      update_lanes<T, kStates, Low>(rule, arrays, i + k * lanes);
    }
  }
  for (; i + lanes <= numel; i += lanes) {
    update_lanes<T, kStates, Low>(rule, arrays, i);
  }
  if (i < numel) {
    // The ragged end: padded copies through the same instructions.
    const std::size_t rest = numel - i;
    HWY_ALIGN T parameter[hn::MaxLanes(d)] = {};
    HWY_ALIGN T gradient[hn::MaxLanes(d)] = {};
    HWY_ALIGN T states[2][hn::MaxLanes(d)] = {};
    HWY_ALIGN std::uint16_t low[hn::MaxLanes(d)] = {};
    std::memcpy(parameter, arrays.parameter + i, rest * sizeof(T));
    std::memcpy(gradient, arrays.gradient + i, rest * sizeof(T));
    for (int k = 0; k < kStates; ++k) {
      std::memcpy(states[k], arrays.states[k] + i, rest * sizeof(T));
    }
    const Arrays<T> padded{parameter, gradient, {states[0], states[1]}, low, parameter};
    update_lanes<T, kStates, Low>(rule, padded, 0);
    std::memcpy(arrays.target + i, parameter, rest * sizeof(T));
    for (int k = 0; k < kStates; ++k) {
      std::memcpy(arrays.states[k] + i, states[k], rest * sizeof(T));
    }
    if constexpr (!std::is_void_v<Low>) {
      std::memcpy(arrays.low + i, low, rest * sizeof(std::uint16_t));
    }
  }
}

template <template <class> class Rule, int kStates, class Step>
void update_with(const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const Step& step,
                 void* target = nullptr) {
  target = target != nullptr ? target : slice.master;
  const auto numel = static_cast<std::size_t>(slice.numel);
  if (slice.dtype == Dtype::kFloat64) {
    const Arrays<double> arrays{
        static_cast<double*>(slice.master),
        static_cast<const double*>(slice.gradient),
        {static_cast<double*>(slice.states[0]), static_cast<double*>(slice.states[1])},
        nullptr,
        static_cast<double*>(target)};
    update_arrays<double, kStates, void>(Rule<double>(transform, step), arrays, numel);
    return;
  }
  const Rule<float> rule(transform, step);
  const Arrays<float> arrays{
      static_cast<float*>(slice.master),
      static_cast<const float*>(slice.gradient),
      {static_cast<float*>(slice.states[0]), static_cast<float*>(slice.states[1])},
      static_cast<std::uint16_t*>(slice.low),
      static_cast<float*>(target)};
  if (slice.low == nullptr) {
    update_arrays<float, kStates, void>(rule, arrays, numel);
  } else if (slice.low_dtype == Dtype::kBFloat16) {
    update_arrays<float, kStates, Brain>(rule, arrays, numel);
  } else {
    update_arrays<float, kStates, Ieee>(rule, arrays, numel);
  }
}

void sgd(const ParameterSlice& slice, const GradientTransform& transform, const SgdStep& step) {
  if (step.momentum != 0) {
    update_with<SgdRule, 1>(slice, transform, step);
  } else {
    update_with<SgdRule, 0>(slice, transform, step);
  }
}

void adam(const ParameterSlice& slice, const GradientTransform& transform, const AdamStep& step) {
  update_with<AdamRule, 2>(slice, transform, step);
}

void adagrad(const ParameterSlice& slice,
             const GradientTransform& transform,
             const AdagradStep& step) {
  update_with<AdagradRule, 1>(slice, transform, step);
}

void lion(const ParameterSlice& slice, const GradientTransform& transform, const LionStep& step) {
  update_with<LionRule, 1>(slice, transform, step);
}

void lamb_measure(const ParameterSlice& slice,
                  const GradientTransform& transform,
                  const LambStep& step,
                  void* direction) {
  update_with<LambMeasureRule, 2>(slice, transform, step, direction);
}

void lamb_apply(const ParameterSlice& slice,
                const GradientTransform& transform,
                const LambStep& step) {
  update_with<LambApplyRule, 2>(slice, transform, step);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::detail {

HWY_EXPORT(sgd);
HWY_EXPORT(adam);
HWY_EXPORT(adagrad);
HWY_EXPORT(lion);
HWY_EXPORT(lamb_measure);
HWY_EXPORT(lamb_apply);

void update_sgd(const ParameterSlice& slice,
                const GradientTransform& transform,
                const SgdStep& step) {
  HWY_DYNAMIC_DISPATCH(sgd)(slice, transform, step);
}

void update_adam(const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const AdamStep& step) {
  HWY_DYNAMIC_DISPATCH(adam)(slice, transform, step);
}

void update_adagrad(const ParameterSlice& slice,
                    const GradientTransform& transform,
                    const AdagradStep& step) {
  HWY_DYNAMIC_DISPATCH(adagrad)(slice, transform, step);
}

void update_lion(const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const LionStep& step) {
  HWY_DYNAMIC_DISPATCH(lion)(slice, transform, step);
}

void measure_lamb(const ParameterSlice& slice,
                  const GradientTransform& transform,
                  const LambStep& step,
                  void* direction) {
  HWY_DYNAMIC_DISPATCH(lamb_measure)(slice, transform, step, direction);
}

void apply_lamb(const ParameterSlice& slice, const LambStep& step) {
  ParameterSlice without_gradient = slice;
  without_gradient.gradient = slice.master;  // not needed any more: nothing more to read
  HWY_DYNAMIC_DISPATCH(lamb_apply)(without_gradient, GradientTransform{}, step);
}

}  // namespace trireme::detail
#endif  // HWY_ONCE
