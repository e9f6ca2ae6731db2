// Rows of sparse gradients: a block has a row of the sums to itself, and adds its terms in order.
#pragma once

#include "device/cuda/kernels/reduce.cuh"

namespace trireme::device::cuda {

template <class In, class Out>
__forceinline__ void add_rows(const RowArguments& rows) {
  const auto* targets = reinterpret_cast<const Count*>(rows.targets);
  const auto* first = reinterpret_cast<const Count*>(rows.first);
  const auto* order = reinterpret_cast<const Count*>(rows.order);
  const auto* values = reinterpret_cast<const typename In::Stored*>(rows.values);
  auto* sums = reinterpret_cast<typename Out::Stored*>(rows.sums);
  for (Count row = blockIdx.x; row < rows.unique; row += gridDim.x) {
    for (Count column = threadIdx.x; column < rows.width; column += kThreads) {
      const Count element = targets[row] * rows.width + column;
      if (element < rows.begin || element >= rows.end) {
        continue;
      }
      typename Out::Stored sum = sums[element - rows.begin];
      for (Count k = first[row]; k < first[row + 1]; ++k) {
        sum = Out::store(sum_of(Out::load(sum), In::load(values[order[k] * rows.width + column])));
      }
      sums[element - rows.begin] = sum;
    }
  }
}

}  // namespace trireme::device::cuda

#define TRIREME_ROWS(name, In, Out)                                                          \
  extern "C" __global__ void rows_##name(                                                    \
      const __grid_constant__ trireme::device::cuda::RowArguments rows) {                    \
    using namespace trireme::device::cuda;                                                   \
    add_rows<In, Out>(rows);                                                                 \
  }

TRIREME_ROWS(float32_float32, Plain<float>, Plain<float>)
TRIREME_ROWS(float64_float64, Plain<double>, Plain<double>)
TRIREME_ROWS(float16_float16, Ieee, Ieee)
TRIREME_ROWS(bfloat16_bfloat16, Brain, Brain)
TRIREME_ROWS(float16_float32, Ieee, Plain<float>)
TRIREME_ROWS(bfloat16_float32, Brain, Plain<float>)
