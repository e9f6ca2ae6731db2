// What the texts of kernels call (device/kernel.h), for a GPU: a block of threads for each block, or
// for every so many. TRIREME_BLOCK_KERNEL makes a kernel of a class that was read before.
#pragma once

#include "device/cuda/kernels/floats.cuh"

namespace trireme::device::cuda {

inline float root_of(float value) { return __fsqrt_rn(value); }
inline double root_of(double value) { return __dsqrt_rn(value); }

template <class T>
__forceinline__ T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

template <class Body>
__forceinline__ void each(const Body& body) {
  body(static_cast<int>(threadIdx.x));
  __syncthreads();
}

template <class Body>
__forceinline__ int count(const Body& body) {
  return __syncthreads_count(body(static_cast<int>(threadIdx.x)) ? 1 : 0);
}

#include "device/kernels/together.h"

}  // namespace trireme::device::cuda

#define TRIREME_BLOCK_KERNEL(Kernel)                                                         \
  extern "C" __global__ void run_blocks(                                                     \
      const __grid_constant__ trireme::device::cuda::Kernel::Arguments arguments) {          \
    using namespace trireme::device::cuda;                                                   \
    __shared__ Kernel::Shared shared;                                                        \
    for (Count block = blockIdx.x; block < arguments.blocks; block += gridDim.x) {           \
      Kernel::run(arguments, block, shared);                                                 \
    }                                                                                        \
  }
