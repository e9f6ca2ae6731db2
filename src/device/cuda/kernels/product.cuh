// Matrix products in the host's order (device/product.h): a thread has an element of the result and
// adds its terms one after another, each operation rounded on its own.
#pragma once

#include "device/cuda/kernels/lanes.cuh"
#include "device/cuda/kernels/floats.cuh"

namespace trireme::device::cuda {

constexpr int kTile = 16;  // kTile * kTile == kThreads

template <class T>
__forceinline__ void multiply(const ProductArguments& p) {
  __shared__ T left[kTile][kTile + 1];
  __shared__ T right[kTile][kTile + 1];
  const auto* a = reinterpret_cast<const T*>(p.a);
  const auto* b = reinterpret_cast<const T*>(p.b);
  auto* c = reinterpret_cast<T*>(p.c);
  const int x = threadIdx.x % kTile;
  const int y = threadIdx.x / kTile;
  const Count across = (p.columns + kTile - 1) / kTile;
  const Count tiles = across * ((p.rows + kTile - 1) / kTile);
  for (Count tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Count row = tile / across * kTile + y;
    const Count column = tile % across * kTile + x;
    T sum = 0;
    for (Count from = 0; from < p.depth; from += kTile) {
      const Count k = from + x;
      const Count l = from + y;
      left[y][x] = row < p.rows && k < p.depth
                       ? a[p.a_transposed ? k * p.rows + row : row * p.depth + k]
                       : T(0);
      right[y][x] = l < p.depth && column < p.columns
                        ? b[p.b_transposed ? column * p.depth + l : l * p.columns + column]
                        : T(0);
      __syncthreads();
      const int steps = static_cast<int>(p.depth - from < kTile ? p.depth - from : kTile);
      for (int step = 0; step < steps; ++step) {
        sum = hn::Add(sum, hn::Mul(left[y][step], right[step][x]));
      }
      __syncthreads();
    }
    if (row < p.rows && column < p.columns) {
      T& to = c[row * p.columns + column];
      const T product = hn::Mul(static_cast<T>(p.alpha), sum);
      const T beta = static_cast<T>(p.beta);
      to = beta == 0 ? product : hn::Add(product, hn::Mul(beta, to));
    }
  }
}

}  // namespace trireme::device::cuda

extern "C" __global__ void multiply_float32(
    const __grid_constant__ trireme::device::cuda::ProductArguments product) {
  trireme::device::cuda::multiply<float>(product);
}
extern "C" __global__ void multiply_float64(
    const __grid_constant__ trireme::device::cuda::ProductArguments product) {
  trireme::device::cuda::multiply<double>(product);
}
