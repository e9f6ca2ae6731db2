// The chain of terms that every sum is (device/sum_chain.h): in rank order, groups first.
#pragma once

#include "device/cuda/kernels/floats.cuh"

namespace trireme::device::cuda {

template <class T>
__forceinline__ T sum_of(T a, T b) { return static_cast<T>(a + b); }
template <>
__forceinline__ float sum_of(float a, float b) { return __fadd_rn(a, b); }
template <>
__forceinline__ double sum_of(double a, double b) { return __dadd_rn(a, b); }
template <>  // overflow must wrap and not be undefined
__forceinline__ long long sum_of(long long a, long long b) {
  return static_cast<long long>(static_cast<unsigned long long>(a) +
                                static_cast<unsigned long long>(b));
}

template <class T>
__forceinline__ T quotient_of(T a, Count divisor) { return a / static_cast<T>(divisor); }
template <>
__forceinline__ float quotient_of(float a, Count divisor) {
  return __fdiv_rn(a, static_cast<float>(divisor));
}
template <>
__forceinline__ double quotient_of(double a, Count divisor) {
  return __ddiv_rn(a, static_cast<double>(divisor));
}

template <bool kAdds, class T>
__forceinline__ T combine(int op, T accumulated, T next) {
  if constexpr (kAdds) {
    return sum_of(accumulated, next);
  }
  const bool better = op == kChainMin ? next < accumulated : accumulated < next;
  const T chosen = better || next != next ? next : accumulated;
  return accumulated != accumulated ? accumulated : chosen;
}

// Integers, whose sums are made in 64 bits.
template <class T>
struct Whole {
  using Stored = T;
  using Wide = long long;
  static __forceinline__ long long load(T stored) { return stored; }
  static __forceinline__ T store(long long value) { return static_cast<T>(value); }
};

constexpr int kTogether = 4;  // terms whose reads are under way at a time

template <class In, class Out, bool kAdds, int kCount>
__forceinline__ void reduce_at(const ChainArguments& chain, Count element) {
  using Wide = typename In::Wide;
  using Terms = Pack<typename In::Stored, kCount>;
  using Outputs = Pack<typename Out::Stored, kCount>;
  Wide total[kCount];  // of the groups that are complete
  Wide group[kCount];
  bool has_total = chain.old != 0;
  if (has_total) {
    const Outputs old = load_pack<typename Out::Stored, kCount>(chain.old, element);
    for (int i = 0; i < kCount; ++i) {
      total[i] = static_cast<Wide>(Out::load(old.at[i]));
    }
  }
  for (int first = 0; first < chain.term_count; first += kTogether) {
    Terms terms[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (first + k < chain.term_count) {
        terms[k] = load_pack<typename In::Stored, kCount>(chain.terms[first + k], element);
      }
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (first + k >= chain.term_count) {
        break;
      }
      const bool begins = (chain.begins >> (first + k) & 1U) != 0;
      if (begins && first + k > 0) {
        for (int i = 0; i < kCount; ++i) {
          total[i] = has_total ? combine<kAdds>(chain.op, total[i], group[i]) : group[i];
        }
        has_total = true;
      }
      for (int i = 0; i < kCount; ++i) {
        const Wide term = In::load(terms[k].at[i]);
        group[i] = begins ? term : combine<kAdds>(chain.op, group[i], term);
      }
    }
  }
  Outputs result;
  for (int i = 0; i < kCount; ++i) {
    Wide sum = has_total ? combine<kAdds>(chain.op, total[i], group[i]) : group[i];
    if (chain.op == kChainAverage) {
      sum = quotient_of(sum, chain.divisor);
    }
    result.at[i] = Out::store(sum);
  }
  for (int k = 0; k < chain.output_count; ++k) {
    store_pack<typename Out::Stored, kCount>(chain.outputs[k], element, result);
  }
}

template <class In, class Out>
__forceinline__ void reduce_all(const ChainArguments& chain) {
  constexpr int kFits = 16 / sizeof(typename In::Stored);
  constexpr int kPack = kFits > kMostInPack ? kMostInPack : kFits;
  deal_out<kPack>(chain.split, [&](auto width, Count element) {
    if (chain.op <= kChainAverage) {
      reduce_at<In, Out, true, decltype(width)::kValue>(chain, element);
    } else {
      reduce_at<In, Out, false, decltype(width)::kValue>(chain, element);
    }
  });
}

}  // namespace trireme::device::cuda

#define TRIREME_REDUCE(name, In, Out)                                                        \
  extern "C" __global__ void reduce_##name(                                                  \
      const __grid_constant__ trireme::device::cuda::ChainArguments chain) {                 \
    using namespace trireme::device::cuda;                                                   \
    reduce_all<In, Out>(chain);                                                              \
  }

// By the dtypes of terms and outputs, as dtype_name spells them.
TRIREME_REDUCE(float32_float32, Plain<float>, Plain<float>)
TRIREME_REDUCE(float64_float64, Plain<double>, Plain<double>)
TRIREME_REDUCE(float16_float16, Ieee, Ieee)
TRIREME_REDUCE(bfloat16_bfloat16, Brain, Brain)
TRIREME_REDUCE(float16_float32, Ieee, Plain<float>)
TRIREME_REDUCE(bfloat16_float32, Brain, Plain<float>)
TRIREME_REDUCE(float32_float16, Plain<float>, Ieee)
TRIREME_REDUCE(float32_bfloat16, Plain<float>, Brain)
TRIREME_REDUCE(int32_int32, Whole<int>, Whole<int>)
TRIREME_REDUCE(int64_int64, Whole<long long>, Whole<long long>)
TRIREME_REDUCE(int16_int16, Whole<short>, Whole<short>)
TRIREME_REDUCE(int8_int8, Whole<signed char>, Whole<signed char>)
TRIREME_REDUCE(uint8_uint8, Whole<unsigned char>, Whole<unsigned char>)
