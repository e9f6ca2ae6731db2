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
#include <cstring>

#include <hwy/cache_control.h>

#include "core/float_formats-inl.h"
#include "optim/update_kernels.h"
#include "optim/update_rules-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {

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
