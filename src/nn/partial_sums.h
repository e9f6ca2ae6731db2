#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "nn/kernel_launch.h"

namespace trireme::nn {

// Blocks leave what they have added up in float32 [sums, blocks, columns]; another kernel adds
// that, so that the order in which blocks run changes nothing.

// Where they leave it.
at::Tensor partial_sums(const at::Tensor& where,
                        std::int64_t sums,
                        std::int64_t blocks,
                        std::int64_t columns);

// The first `count` of the sums, in the type of `like`.
std::vector<at::Tensor> added(const at::Tensor& partial,
                              std::int64_t count,
                              const at::Tensor& like);

// Blocks for kernels/columns.cuh: as many as an H200 runs at the same time, whatever GPU it is, so
// that the order of the sums follows from the tensor's size alone.
inline constexpr std::int64_t kBlocksAtOnce = 528;
inline constexpr std::int64_t kLargeBlocksAtOnce = 396;  // of a kernel with many registers
Grid grid_of_columns(std::int64_t rows,
                     std::int64_t columns,
                     int pack,
                     std::int64_t blocks = kBlocksAtOnce);

}  // namespace trireme::nn
