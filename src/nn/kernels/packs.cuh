// Elements as the kernels of this room read and write them. Who includes it has said what they are:
//   TRIREME_ELEMENT  Brain, Ieee or Plain<float>
//   TRIREME_PACK     how many a thread reads and writes at a time
// Everything is computed in float32. Where products are fused with sums, the text says fmaf.
#pragma once

#include "device/cuda/kernels/floats.cuh"
#include "nn/kernel_arguments.h"

namespace trireme::nn::kernels {

using Element = device::cuda::TRIREME_ELEMENT;
using Stored = Element::Stored;
constexpr int kPack = TRIREME_PACK;
constexpr int kLanes = 32;

struct Floats {
  float at[kPack];
};

__forceinline__ float widened(device::cuda::Brain, unsigned short stored) {
  return __uint_as_float(static_cast<unsigned>(stored) << 16);
}
__forceinline__ float widened(device::cuda::Ieee, unsigned short stored) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
  return value;
}
__forceinline__ float widened(device::cuda::Plain<float>, float stored) { return stored; }

__forceinline__ unsigned short narrowed(device::cuda::Brain, float value) {
#if __CUDA_ARCH__ >= 900
  unsigned short stored;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored) : "f"(value));
  return stored;
#else
  return device::cuda::Brain::store(value);
#endif
}
__forceinline__ unsigned short narrowed(device::cuda::Ieee, float value) {
  unsigned short stored;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(value));
  return stored;
}
__forceinline__ float narrowed(device::cuda::Plain<float>, float value) { return value; }

// Two elements of 16 bits, the first in the lower half.
template <class T>
__forceinline__ unsigned narrowed_pair(T, float first, float second) {
  return narrowed(T(), first) | static_cast<unsigned>(narrowed(T(), second)) << 16;
}
#if __CUDA_ARCH__ >= 900
__forceinline__ unsigned narrowed_pair(device::cuda::Brain, float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
__forceinline__ unsigned narrowed_pair(device::cuda::Ieee, float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#endif

__forceinline__ float rounded(float value) { return widened(Element(), narrowed(Element(), value)); }

// The bits of a pack, which are one read or write. (A struct of 16-bit elements would be written one
// by one, and reads would move down to where they are used.)
template <int kBytes>
struct Bits {
  using Type = unsigned short;
};
template <>
struct Bits<4> {
  using Type = unsigned;
};
template <>
struct Bits<8> {
  using Type = uint2;
};
template <>
struct Bits<16> {
  using Type = uint4;
};

constexpr int kPackBytes = kPack * static_cast<int>(sizeof(Stored));
using PackBits = Bits<kPackBytes>::Type;

struct alignas(kPackBytes) Raw {
  Stored at[kPack];
};

__forceinline__ Address place(Address base, Count element) {
  return base + element * sizeof(Stored);
}

template <class T>
__forceinline__ T read(Address place, T) {
  return *reinterpret_cast<const T*>(place);
}
// Not ld.global.nc: reads that may not move past writes stay together before them.
__forceinline__ uint4 read(Address place, uint4) {
  uint4 bits;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(place)
               : "memory");
  return bits;
}

template <class T>
__forceinline__ void write(Address place, T bits) {
  *reinterpret_cast<T*>(place) = bits;
}
__forceinline__ void write(Address place, uint4 bits) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place),
               "r"(bits.x),
               "r"(bits.y),
               "r"(bits.z),
               "r"(bits.w)
               : "memory");
}

__forceinline__ Raw load_raw(Address base, Count element) {
  return __builtin_bit_cast(Raw, read(place(base, element), PackBits()));
}

__forceinline__ Floats widened(const Raw& pack) {
  Floats floats;
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    floats.at[k] = widened(Element(), pack.at[k]);
  }
  return floats;
}

__forceinline__ Floats load(Address base, Count element) { return widened(load_raw(base, element)); }

template <int kCount>
__forceinline__ PackBits bits_of(const Floats& floats) {
  if constexpr (sizeof(Stored) == 2 && kCount > 1) {
    struct alignas(2 * kCount) Pairs {
      unsigned at[kCount / 2];
    } pairs;
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      pairs.at[k] = narrowed_pair(Element(), floats.at[2 * k], floats.at[2 * k + 1]);
    }
    return __builtin_bit_cast(PackBits, pairs);
  } else {
    Raw pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      pack.at[k] = narrowed(Element(), floats.at[k]);
    }
    return __builtin_bit_cast(PackBits, pack);
  }
}

__forceinline__ void store(Address base, Count element, const Floats& floats) {
  write(place(base, element), bits_of<kPack>(floats));
}

__forceinline__ void add_to(Floats& sum, const Floats& term) {
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    sum.at[k] += term.at[k];
  }
}

// The same in every lane, added in the same order.
__forceinline__ float over_warp(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  }
  return value;
}

// Of the kCount threads that have a row in common: a warp's, or all of the block.
template <int kCount>
__forceinline__ float over_group(float value) {
  value = over_warp(value);
  if (kCount > kLanes) {
    __shared__ float warps[kCount / kLanes];
    __syncthreads();  // what an earlier call left has been read
    if (threadIdx.x % kLanes == 0) {
      warps[threadIdx.x / kLanes] = value;
    }
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < kCount / kLanes; ++warp) {
      value += warps[warp];
    }
  }
  return value;
}

}  // namespace trireme::nn::kernels
