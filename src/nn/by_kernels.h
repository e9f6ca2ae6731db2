#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trireme/nn/layer_norm.h"

// What the functions of this room do where can_use_kernels says so. On a CPU these are the same
// graphs with LibTorch's operators in the kernels' place: for tests, which thus see the graphs
// without a GPU, and in float64.

namespace trireme::nn {

at::Tensor layer_norm_by_kernels(const at::Tensor& x,
                                 const at::Tensor& weight,
                                 const at::Tensor& offset,
                                 double epsilon);

AddedAndNormed add_layer_norm_by_kernels(const at::Tensor& x,
                                         const at::Tensor& branch,
                                         const std::optional<at::Tensor>& bias,
                                         const at::Tensor& weight,
                                         const at::Tensor& offset,
                                         double epsilon);

at::Tensor bias_gelu_by_kernels(const at::Tensor& x, const at::Tensor& bias);

// bias is for qkv's gradient alone to be added up to: it is in qkv already. Undefined: nobody asks.
at::Tensor self_attention_by_kernels(const at::Tensor& x,
                                     const at::Tensor& weight,
                                     const at::Tensor& bias,
                                     std::int64_t heads,
                                     bool causal);
at::Tensor attention_by_kernels(const at::Tensor& qkv, std::int64_t heads, bool causal);

// x [rows, columns], targets [rows].
at::Tensor linear_cross_entropy_by_kernels(const at::Tensor& x,
                                           const at::Tensor& weight,
                                           const at::Tensor& targets,
                                           std::int64_t ignored,
                                           std::int64_t rows_of_chunk);

// Rows whose scores are there at the same time: as many as make half a gigabyte of 16-bit scores,
// in chunks of nearly the same size.
std::int64_t rows_of_chunk(std::int64_t rows, std::int64_t words);

}  // namespace trireme::nn
