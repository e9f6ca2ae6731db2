// The pass of an update rule over its arrays, as device/host/update_pass-inl.h does it on vectors.
// TRIREME_RULE is the rule's class template, of which the formula has been read before, and
// TRIREME_STATES the number of its states.
#pragma once

#include "device/cuda/kernels/floats.cuh"

namespace trireme::device::cuda {

struct NoLow {
  using Stored = unsigned short;
  static constexpr bool kStores = false;
  static __forceinline__ Stored store(float) { return 0; }
};
template <class Format>
struct StoredLow : Format {
  static constexpr bool kStores = true;
};

template <class T, class Low, class Rule>
__forceinline__ void update_all(const Rule& rule, const UpdateArguments& arrays) {
  constexpr int kStates = TRIREME_STATES;
  deal_out<16 / sizeof(T)>(arrays.split, [&](auto width, Count element) {
    constexpr int kCount = decltype(width)::kValue;
    const auto gradient = load_pack<T, kCount>(arrays.gradient, element);
    auto parameter = load_pack<T, kCount>(arrays.parameter, element);
    Pack<T, kCount> states[3] = {};
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      states[k] = load_pack<T, kCount>(arrays.states[k], element);
    }
    Pack<unsigned short, kCount> low;
    for (int i = 0; i < kCount; ++i) {
      parameter.at[i] = rule(
          parameter.at[i], gradient.at[i], states[0].at[i], states[1].at[i], states[2].at[i]);
      low.at[i] = Low::store(static_cast<float>(parameter.at[i]));
    }
    store_pack<T, kCount>(arrays.result, element, parameter);
    if constexpr (Rule::kMovesStates) {
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        store_pack<T, kCount>(arrays.states[k], element, states[k]);
      }
    }
    if constexpr (Low::kStores) {
      store_pack<unsigned short, kCount>(arrays.low, element, low);
    }
  });
}

}  // namespace trireme::device::cuda

#define TRIREME_UPDATE(name, T, Low)                                                         \
  extern "C" __global__ void name(                                                           \
      const __grid_constant__ TRIREME_RULE<T> rule,                                          \
      const __grid_constant__ trireme::device::cuda::UpdateArguments arrays) {               \
    using namespace trireme::device::cuda;                                                   \
    update_all<T, Low>(rule, arrays);                                                        \
  }                                                                                          \

TRIREME_UPDATE(update_float32, float, NoLow)
TRIREME_UPDATE(update_float32_bfloat16, float, StoredLow<Brain>)
TRIREME_UPDATE(update_float32_float16, float, StoredLow<Ieee>)
TRIREME_UPDATE(update_float64, double, NoLow)
