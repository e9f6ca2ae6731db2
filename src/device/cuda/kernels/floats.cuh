// How a stored element becomes one of an accumulator and back, bit for bit as
// core/float_formats-inl.h does it, and how several are read and written at a time.
#pragma once

#include "device/cuda/kernel_arguments.h"

namespace trireme::device::cuda {

template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static __forceinline__ T load(T stored) { return stored; }
  static __forceinline__ T store(T value) { return value; }
};

struct Brain {  // bfloat16: the upper half of a float32
  using Stored = unsigned short;
  using Wide = float;
  static __forceinline__ float load(Stored stored) {
    return __uint_as_float(static_cast<unsigned>(stored) << 16);
  }
  static __forceinline__ Stored store(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned rounded = (bits + ((bits >> 16) & 1U) + 0x7FFFU) >> 16;
    const unsigned quiet = (bits >> 16) | 0x40U;
    return static_cast<Stored>(value != value ? quiet : rounded);
  }
};

struct Ieee {  // float16
  using Stored = unsigned short;
  using Wide = float;
  static __forceinline__ float load(Stored stored) {
    const unsigned magnitude = stored & 0x7FFFU;
    const unsigned sign = static_cast<unsigned>(stored & 0x8000U) << 16;
    const unsigned rebias = magnitude > 0x7BFFU ? 224U << 23 : 112U << 23;
    const unsigned normal = (magnitude << 13) + rebias;
    // Subnormal numbers are whole multiples of 2^-24.
    const unsigned tiny =
        __float_as_uint(__fmul_rn(__uint2float_rn(magnitude), 5.9604644775390625e-08f));
    return __uint_as_float(sign | (magnitude < 0x0400U ? tiny : normal));
  }
  static __forceinline__ Stored store(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = (bits >> 16) & 0x8000U;
    const unsigned magnitude = bits & 0x7FFFFFFFU;
    const unsigned rounded =
        ((magnitude - (112U << 23)) + ((magnitude >> 13) & 1U) + 0xFFFU) >> 13;
    const unsigned tiny =
        __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - __float_as_uint(0.5f);
    unsigned half = magnitude < (113U << 23) ? tiny : rounded;
    half = magnitude > 0x477FEFFFU ? 0x7C00U : half;
    half = value != value ? 0x7E00U | ((magnitude >> 13) & 0x03FFU) : half;
    return static_cast<Stored>(half | sign);
  }
};

template <int kBytes>
struct Alignment {
  static constexpr int kValue = kBytes > 16 ? 16 : kBytes;
};

// Elements that one thread reads or writes together, at most 16 bytes per instruction.
template <class T, int kCount>
struct alignas(Alignment<static_cast<int>(sizeof(T)) * kCount>::kValue) Pack {
  T at[kCount];
};

template <class T, int kCount>
__forceinline__ Pack<T, kCount> load_pack(Address base, Count element) {
  return *reinterpret_cast<const Pack<T, kCount>*>(reinterpret_cast<const T*>(base) + element);
}

template <class T, int kCount>
__forceinline__ void store_pack(Address base, Count element, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(reinterpret_cast<T*>(base) + element) = pack;
}

__forceinline__ Count thread_number() {
  return static_cast<Count>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// Calls body(count, element) for what this thread has: a pack of kCount, or a single one.
template <int kCount>
struct Width {
  static constexpr int kValue = kCount;
};

template <int kPack, class Body>
__forceinline__ void deal_out(const Split& split, const Body& body) {
  const Count mine = thread_number();
  if (mine < split.packs) {
    body(Width<kPack>(), split.head + mine * kPack);
    return;
  }
  const Count single = mine - split.packs;
  if (single < split.singles) {
    body(Width<1>(), single < split.head ? single : single + split.packs * kPack);
  }
}

}  // namespace trireme::device::cuda
