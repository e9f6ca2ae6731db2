#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::nn {

// GELU of x + bias, the approximation by tanh; bias [columns].
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

// GELU of a linear layer: its bias, and the bias' gradient, cost no pass of their own.
at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace trireme::nn
