// Copies that look for infinities on the way, and those that change the type of floats.
#pragma once

#include "device/cuda/kernels/floats.cuh"

namespace trireme::device::cuda {

__forceinline__ void tell_not_finite(const CopyArguments& copy) {
  *reinterpret_cast<volatile unsigned*>(copy.not_finite) = 1;
}

// Floats as bits: one is finite when its exponent is not all ones.
template <class Bits>
__forceinline__ void copy_bits(const CopyArguments& copy) {
  deal_out<16 / sizeof(Bits)>(copy.split, [&](auto width, Count element) {
    constexpr int kCount = decltype(width)::kValue;
    const auto exponent = static_cast<Bits>(copy.exponent);
    const auto values = load_pack<Bits, kCount>(copy.from, element);
    bool finite = true;
    for (int i = 0; i < kCount; ++i) {
      finite &= (values.at[i] & exponent) != exponent;
    }
    if (copy.to != 0) {
      store_pack<Bits, kCount>(copy.to, element, values);
    }
    if (!finite && copy.not_finite != 0) {
      tell_not_finite(copy);
    }
  });
}

template <class In, class Out>
__forceinline__ void convert(const CopyArguments& copy) {
  deal_out<16 / sizeof(float)>(copy.split, [&](auto width, Count element) {
    constexpr int kCount = decltype(width)::kValue;
    const auto values = load_pack<typename In::Stored, kCount>(copy.from, element);
    Pack<typename Out::Stored, kCount> result;
    bool finite = true;
    for (int i = 0; i < kCount; ++i) {
      const float value = In::load(values.at[i]);
      finite &= (__float_as_uint(value) & 0x7F800000U) != 0x7F800000U;
      result.at[i] = Out::store(value);
    }
    store_pack<typename Out::Stored, kCount>(copy.to, element, result);
    if (!finite && copy.not_finite != 0) {
      tell_not_finite(copy);
    }
  });
}

}  // namespace trireme::device::cuda

#define TRIREME_COPY(name, ...)                                                              \
  extern "C" __global__ void copy_##name(                                                    \
      const __grid_constant__ trireme::device::cuda::CopyArguments copy) {                   \
    using namespace trireme::device::cuda;                                                   \
    __VA_ARGS__(copy);                                                                       \
  }

TRIREME_COPY(2, copy_bits<unsigned short>)
TRIREME_COPY(4, copy_bits<unsigned>)
TRIREME_COPY(8, copy_bits<unsigned long long>)
TRIREME_COPY(float16_float32, convert<Ieee, Plain<float>>)
TRIREME_COPY(bfloat16_float32, convert<Brain, Plain<float>>)
TRIREME_COPY(float32_float16, convert<Plain<float>, Ieee>)
TRIREME_COPY(float32_bfloat16, convert<Plain<float>, Brain>)
