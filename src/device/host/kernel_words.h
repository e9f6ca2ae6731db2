#pragma once

#include <bit>
#include <cmath>

#include "device/cuda/kernel_arguments.h"
#include "device/kernel.h"

// What the texts of kernels call (device/kernel.h), for the host's compiler: the threads of a block
// take turns. cuda/kernels/blocks.cuh has the same names.

namespace trireme::device::by_turns {

using cuda::Address;
using cuda::Count;
using cuda::kThreads;

inline unsigned bits_of(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float float_of(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline float root_of(float value) {
  return std::sqrt(value);
}
inline double root_of(double value) {
  return std::sqrt(value);
}

// The memory at an address, as elements.
template <class T>
inline T* at(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

template <class Body>
inline void each(const Body& body) {
  for (int thread = 0; thread < kThreads; ++thread) {
    body(thread);
  }
}

// Of how many threads it is true.
template <class Body>
inline int count(const Body& body) {
  int found = 0;
  each([&](int thread) { found += body(thread) ? 1 : 0; });
  return found;
}

#include "device/kernels/halves.h"
#include "device/kernels/together.h"

template <class Kernel>
void run_blocks(const void* arguments) {
  const auto& its = *static_cast<const typename Kernel::Arguments*>(arguments);
  typename Kernel::Shared shared;
  for (Count block = 0; block < its.blocks; ++block) {
    Kernel::run(its, block, shared);
  }
}

// `name` is Kernel's.
template <class Kernel>
BlockKernel block_kernel(const char* name,
                         std::span<const SourceText> texts,
                         const typename Kernel::Arguments& arguments) {
  return {.name = name,
          .texts = texts,
          .arguments = &arguments,
          .bytes = sizeof(arguments),
          .blocks = arguments.blocks,
          .on_host = &run_blocks<Kernel>};
}

}  // namespace trireme::device::by_turns
