#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace trireme::nn {

// (x - mean) / sqrt(variance + epsilon) * weight + offset, over the last dimension. Kernels (see
// kernels.h) take up to 8192 columns.
at::Tensor layer_norm(const at::Tensor& x,
                      const at::Tensor& weight,
                      const at::Tensor& offset,
                      double epsilon = 1e-5);

struct AddedAndNormed {
  at::Tensor sum;
  at::Tensor normed;
};

// sum = x + (branch + bias), which is what the next residual connection starts from, and the layer
// norm of it. A linear layer that hands over its product here, and its bias beside it, saves a pass
// over the branch, and another in backward:
//
//   auto [x, y] = add_layer_norm(x, at::linear(y, out->weight), out->bias, norm->weight,
//   norm->bias);
AddedAndNormed add_layer_norm(const at::Tensor& x,
                              const at::Tensor& branch,
                              const std::optional<at::Tensor>& bias,  // [columns]
                              const at::Tensor& weight,
                              const at::Tensor& offset,
                              double epsilon = 1e-5);

}  // namespace trireme::nn
