// The fused pass of an update rule over its arrays. Every element goes through the same vector
// instructions, the ragged end included; additions and multiplications are never fused, because not
// every machine can, and roots and quotients are exact, never estimates. Included once per
// instruction set, after highway.h, by the file of each rule (hence the toggling guard, Highway's
// way).
//
// A rule is a class template over the element's type, with a constructor from its constants and
//   Lanes<T> operator()(Lanes<T> p, Lanes<T> g, Lanes<T>& a, Lanes<T>& b[, Lanes<T>& c]) const
// that returns the result and moves the states, of which it has kStates; one that only looks says
// kMovesStates = false. It keeps its constants as scalars and calls nothing but Highway's
// operations on lanes: a device of another kind compiles the same text with operations of its own.

#if defined(TRIREME_DEVICE_UPDATE_PASS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_DEVICE_UPDATE_PASS_INL_H
#undef TRIREME_DEVICE_UPDATE_PASS_INL_H
#else
#define TRIREME_DEVICE_UPDATE_PASS_INL_H
#endif

#include <cstring>
#include <type_traits>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "core/float_formats-inl.h"
#include "device/update.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kPassStates = UpdateArrays::kMostStates;

template <class T>
using Lanes = hn::Vec<hn::ScalableTag<T>>;

// Where a pass is while it walks over the arrays.
template <class T>
struct Arrays {
  const T* parameter;
  const T* gradient;
  T* states[kPassStates];
  std::uint16_t* low;
  T* result;
};

template <class T, int kStates, class Low, class Rule>
HWY_INLINE void update_lanes(const Rule& rule, const Arrays<T>& at, std::size_t i) {
  const hn::ScalableTag<T> d;
  auto first = kStates > 0 ? hn::LoadU(d, at.states[0] + i) : hn::Zero(d);
  auto second = kStates > 1 ? hn::LoadU(d, at.states[1] + i) : hn::Zero(d);
  auto third = kStates > 2 ? hn::LoadU(d, at.states[2] + i) : hn::Zero(d);
  const auto gradient = hn::LoadU(d, at.gradient + i);
  const auto parameter = hn::LoadU(d, at.parameter + i);
  auto result = parameter;
  if constexpr (requires { rule(parameter, gradient, first, second, third); }) {
    result = rule(parameter, gradient, first, second, third);
  } else {
    result = rule(parameter, gradient, first, second);
  }
  hn::StoreU(result, d, at.result + i);
  if constexpr (kStates > 0 && Rule::kMovesStates) {
    hn::StoreU(first, d, at.states[0] + i);
  }
  if constexpr (kStates > 1 && Rule::kMovesStates) {
    hn::StoreU(second, d, at.states[1] + i);
  }
  if constexpr (kStates > 2 && Rule::kMovesStates) {
    hn::StoreU(third, d, at.states[2] + i);
  }
  if constexpr (!std::is_void_v<Low>) {
    Low::store(d, result, at.low + i);
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
    HWY_ALIGN T states[kPassStates][hn::MaxLanes(d)] = {};
    HWY_ALIGN std::uint16_t low[hn::MaxLanes(d)] = {};
    std::memcpy(parameter, arrays.parameter + i, rest * sizeof(T));
    std::memcpy(gradient, arrays.gradient + i, rest * sizeof(T));
    for (int k = 0; k < kStates; ++k) {
      std::memcpy(states[k], arrays.states[k] + i, rest * sizeof(T));
    }
    const Arrays<T> padded{parameter, gradient, {states[0], states[1], states[2]}, low, parameter};
    update_lanes<T, kStates, Low>(rule, padded, 0);
    std::memcpy(arrays.result + i, parameter, rest * sizeof(T));
    for (int k = 0; k < kStates && Rule::kMovesStates; ++k) {
      std::memcpy(arrays.states[k] + i, states[k], rest * sizeof(T));
    }
    if constexpr (!std::is_void_v<Low>) {
      std::memcpy(arrays.low + i, low, rest * sizeof(std::uint16_t));
    }
  }
}

template <class T>
Arrays<T> arrays_of(const UpdateArrays& arrays) {
  return {static_cast<T*>(arrays.parameter),
          static_cast<const T*>(arrays.gradient),
          {static_cast<T*>(arrays.states[0]),
           static_cast<T*>(arrays.states[1]),
           static_cast<T*>(arrays.states[2])},
          static_cast<std::uint16_t*>(arrays.low),
          static_cast<T*>(arrays.result != nullptr ? arrays.result : arrays.parameter)};
}

template <int kStates, class Rule>
void update_doubles(const Rule& rule, const UpdateArrays& arrays) {
  update_arrays<double, kStates, void>(
      rule, arrays_of<double>(arrays), static_cast<std::size_t>(arrays.numel));
}

template <int kStates, class Rule>
void update_floats(const Rule& rule, const UpdateArrays& arrays) {
  using detail::HWY_NAMESPACE::Brain;
  using detail::HWY_NAMESPACE::Ieee;
  const auto numel = static_cast<std::size_t>(arrays.numel);
  if (arrays.low == nullptr) {
    update_arrays<float, kStates, void>(rule, arrays_of<float>(arrays), numel);
  } else if (arrays.low_dtype == Dtype::kBFloat16) {
    update_arrays<float, kStates, Brain>(rule, arrays_of<float>(arrays), numel);
  } else {
    update_arrays<float, kStates, Ieee>(rule, arrays_of<float>(arrays), numel);
  }
}

// Rule<T>(constants...) over the arrays.
template <template <class> class Rule, int kStates, class... Constants>
void update_with(const UpdateArrays& arrays, const Constants&... constants) {
  if (arrays.dtype == Dtype::kFloat64) {
    update_doubles<kStates>(Rule<double>(constants...), arrays);
  } else {
    update_floats<kStates>(Rule<float>(constants...), arrays);
  }
}

// UpdateRule::on_host.
template <template <class> class Rule, int kStates>
void update_by(const void* rule, const UpdateArrays& arrays) {
  if (arrays.dtype == Dtype::kFloat64) {
    update_doubles<kStates>(*static_cast<const Rule<double>*>(rule), arrays);
  } else {
    update_floats<kStates>(*static_cast<const Rule<float>*>(rule), arrays);
  }
}

}  // namespace trireme::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
