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

__forceinline__ unsigned bits_of(float value) { return __float_as_uint(value); }
__forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }

#include "device/kernels/halves.h"

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
