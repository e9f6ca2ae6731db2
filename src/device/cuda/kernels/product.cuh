// Matrix products in the host's order (device/product.h): a thread has some elements of the result and
// adds the terms of each one after another, each operation rounded on its own.
#pragma once

#include "device/cuda/kernels/lanes.cuh"
#include "device/cuda/kernels/floats.cuh"

namespace trireme::device::cuda {

constexpr int kSteps = 16;  // of the depth that are in shared memory at a time
constexpr int kEdge = 4;    // rows and columns of the result that a thread has
static_assert(kProductTile * kProductTile == kThreads * kEdge * kEdge);

template <class T>
__forceinline__ void multiply(const ProductArguments& p) {
  constexpr int kAcross = kProductTile / kEdge;
  // A row more, or the threads that fill a column would all want the same bank.
  __shared__ T left[kSteps][kProductTile + 1];
  __shared__ T right[kSteps][kProductTile + 1];
  const auto* a = reinterpret_cast<const T*>(p.a);
  const auto* b = reinterpret_cast<const T*>(p.b);
  auto* c = reinterpret_cast<T*>(p.c);
  const int x = threadIdx.x % kAcross;
  const int y = threadIdx.x / kAcross;
  const Count across = (p.columns + kProductTile - 1) / kProductTile;
  const Count tiles = across * ((p.rows + kProductTile - 1) / kProductTile);
  for (Count tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Count top = tile / across * kProductTile;
    const Count first = tile % across * kProductTile;
    T sums[kEdge][kEdge] = {};
    for (Count from = 0; from < p.depth; from += kSteps) {
      // Neighbours in memory are read by neighbours among the threads.
      for (int i = threadIdx.x; i < kSteps * kProductTile; i += kThreads) {
        const int k = p.a_transposed ? i / kProductTile : i % kSteps;
        const int row = p.a_transposed ? i % kProductTile : i / kSteps;
        const Count at = from + k;
        left[k][row] =
            top + row < p.rows && at < p.depth
                ? a[p.a_transposed ? at * p.rows + top + row : (top + row) * p.depth + at]
                : T(0);
      }
      for (int i = threadIdx.x; i < kSteps * kProductTile; i += kThreads) {
        const int k = p.b_transposed ? i % kSteps : i / kProductTile;
        const int column = p.b_transposed ? i / kSteps : i % kProductTile;
        const Count at = from + k;
        right[k][column] =
            at < p.depth && first + column < p.columns
                ? b[p.b_transposed ? (first + column) * p.depth + at : at * p.columns + first + column]
                : T(0);
      }
      __syncthreads();
      const int steps = static_cast<int>(p.depth - from < kSteps ? p.depth - from : kSteps);
      for (int step = 0; step < steps; ++step) {
        // A thread's rows and columns are kAcross apart: neighbours read neighbours.
        T rows[kEdge];
        T columns[kEdge];
#pragma unroll
        for (int i = 0; i < kEdge; ++i) {
          rows[i] = left[step][y + i * kAcross];
          columns[i] = right[step][x + i * kAcross];
        }
#pragma unroll
        for (int i = 0; i < kEdge; ++i) {
#pragma unroll
          for (int j = 0; j < kEdge; ++j) {
            sums[i][j] = hn::Add(sums[i][j], hn::Mul(rows[i], columns[j]));
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kEdge; ++i) {
#pragma unroll
      for (int j = 0; j < kEdge; ++j) {
        const Count row = top + y + i * kAcross;
        const Count column = first + x + j * kAcross;
        if (row < p.rows && column < p.columns) {
          T& to = c[row * p.columns + column];
          const T product = hn::Mul(static_cast<T>(p.alpha), sums[i][j]);
          const T beta = static_cast<T>(p.beta);
          to = beta == 0 ? product : hn::Add(product, hn::Mul(beta, to));
        }
      }
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
