// Largest magnitudes and exact sums of squares (trireme/device/square_sum.h). Neither has an order,
// so each block leaves what it found, and one more block puts that together.
#pragma once

#include "device/cuda/kernels/floats.cuh"

namespace trireme::device::cuda {

template <class T>
__forceinline__ T scaled(const NormArguments& norm, T value);
template <>
__forceinline__ float scaled(const NormArguments& norm, float value) {
  return norm.scales == 0 ? value
                          : __fmul_rn(__fdiv_rn(value, static_cast<float>(norm.divisor)),
                                      static_cast<float>(norm.unscale));
}
template <>
__forceinline__ double scaled(const NormArguments& norm, double value) {
  return norm.scales == 0 ? value : __dmul_rn(__ddiv_rn(value, norm.divisor), norm.unscale);
}

struct Larger {
  static __forceinline__ double of(double a, double b) { return b > a ? b : a; }
};
struct Sum {
  static __forceinline__ double of(double a, double b) { return __dadd_rn(a, b); }
};

// Of all threads of the block; thread 0 has the result.
template <class Combine>
__forceinline__ double over_block(double value) {
  __shared__ double warps[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) {
    value = Combine::of(value, __shfl_down_sync(0xFFFFFFFFU, value, step));
  }
  __syncthreads();  // what an earlier call left has been read
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = value;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / 32; ++warp) {
      value = Combine::of(value, warps[warp]);
    }
  }
  return value;
}

// Calls look(value) for the elements that this thread has among those of all blocks.
template <class T, class Look>
__forceinline__ void look_at(const NormArguments& norm, const Look& look) {
  constexpr int kPack = 16 / sizeof(T);
  const Count all = static_cast<Count>(gridDim.x) * kThreads;
#pragma unroll 4
  for (Count i = thread_number(); i < norm.split.packs; i += all) {
    const auto pack = load_pack<T, kPack>(norm.data, norm.split.head + i * kPack);
    for (int k = 0; k < kPack; ++k) {
      look(static_cast<double>(scaled<T>(norm, pack.at[k])));
    }
  }
  for (Count i = thread_number(); i < norm.split.singles; i += all) {
    const Count element = i < norm.split.head ? i : i + norm.split.packs * kPack;
    look(static_cast<double>(scaled<T>(norm, reinterpret_cast<const T*>(norm.data)[element])));
  }
}

template <class T>
__forceinline__ void largest_all(const NormArguments& norm) {
  double largest = 0;
  look_at<T>(norm, [&](double value) {
    largest = Larger::of(largest, value != value ? __longlong_as_double(0x7FF0000000000000LL)
                                                 : fabs(value));
  });
  largest = over_block<Larger>(largest);
  if (threadIdx.x == 0) {
    reinterpret_cast<double*>(norm.partial)[blockIdx.x] = largest;
  }
}

template <class T>
__forceinline__ void squares_all(const NormArguments& norm) {
  double coarse = 0;
  double fine = 0;
  look_at<T>(norm, [&](double value) {
    const double square = __dmul_rn(value, value);
    const double multiple = __dsub_rn(__dadd_rn(square, norm.coarse), norm.coarse);
    const double rest = __dsub_rn(square, multiple);
    coarse = __dadd_rn(coarse, multiple);
    fine = __dadd_rn(fine, __dsub_rn(__dadd_rn(rest, norm.fine), norm.fine));
  });
  coarse = over_block<Sum>(coarse);
  fine = over_block<Sum>(fine);
  if (threadIdx.x == 0) {
    reinterpret_cast<double*>(norm.partial)[2 * blockIdx.x] = coarse;
    reinterpret_cast<double*>(norm.partial)[2 * blockIdx.x + 1] = fine;
  }
}

// Number `which` of `stride` that each block has left, combined with the result.
template <class Combine>
__forceinline__ void put_together(const NormArguments& norm, int stride, int which) {
  double value = 0;
  for (int i = threadIdx.x; i < norm.blocks; i += kThreads) {
    value = Combine::of(value, reinterpret_cast<const double*>(norm.partial)[i * stride + which]);
  }
  value = over_block<Combine>(value);
  if (threadIdx.x == 0) {
    double* result = reinterpret_cast<double*>(norm.result) + which;
    *result = Combine::of(*result, value);
  }
}

}  // namespace trireme::device::cuda

#define TRIREME_NORM(name, ...)                                                              \
  extern "C" __global__ void name(                                                           \
      const __grid_constant__ trireme::device::cuda::NormArguments norm) {                   \
    using namespace trireme::device::cuda;                                                   \
    __VA_ARGS__;                                                                             \
  }

TRIREME_NORM(largest_float32, largest_all<float>(norm))
TRIREME_NORM(largest_float64, largest_all<double>(norm))
TRIREME_NORM(squares_float32, squares_all<float>(norm))
TRIREME_NORM(squares_float64, squares_all<double>(norm))
TRIREME_NORM(largest_result, put_together<Larger>(norm, 1, 0))
TRIREME_NORM(squares_result, put_together<Sum>(norm, 2, 0); put_together<Sum>(norm, 2, 1))
