#pragma once

#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tril.h>

#include "gradient_check.h"

// The functions as formulas in operators of LibTorch, whose autograd has their gradients.

namespace trireme::nn::testing {

inline Tensors norm_formula(const Tensors& in) {  // x, weight, offset
  const Tensor centred = in[0] - in[0].mean(-1, true);
  const Tensor variance = centred.square().mean(-1, true);
  return {centred / (variance + 1e-5).sqrt() * in[1] + in[2]};
}

inline Tensors add_norm_formula(const Tensors& in) {  // x, weight, offset, branch, bias
  const Tensor sum = in[0] + in[3] + (in.size() > 4 ? in[4] : torch::zeros_like(in[1]));
  return {sum, norm_formula({sum, in[1], in[2]})[0]};
}

inline Tensors gelu_formula(const Tensors& in) {  // x, bias
  const Tensor x = in[0] + in[1];
  const Tensor z = std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3));
  return {0.5 * x * (1 + z.tanh())};
}

inline Tensor attention_formula(const Tensor& qkv, std::int64_t heads, bool causal) {
  const std::int64_t length = qkv.size(1);
  const std::int64_t width = qkv.size(2) / 3;
  const auto part = [&](std::int64_t which) {
    return qkv.slice(2, which * width, (which + 1) * width)
        .reshape({qkv.size(0), length, heads, width / heads})
        .transpose(1, 2);
  };
  Tensor scores =
      at::matmul(part(0), part(1).transpose(2, 3)) / std::sqrt(static_cast<double>(width / heads));
  if (causal) {
    const Tensor sees = at::tril(torch::ones({length, length}, torch::kBool));
    scores = scores.masked_fill(sees.logical_not(), -INFINITY);
  }
  return at::matmul(at::softmax(scores, -1), part(2))
      .transpose(1, 2)
      .reshape({qkv.size(0), length, width});
}

// x, weight, targets
inline Tensors cross_entropy_formula(const Tensors& in, std::int64_t ignored) {
  const Tensor scores = at::matmul(in[0], in[1].t());
  const Tensor logarithms = scores - scores.logsumexp(-1, true);
  const Tensor counts = in[2].ne(ignored);
  const Tensor places = in[2].where(counts, torch::zeros_like(in[2]));
  const Tensor losses = -logarithms.gather(-1, places.unsqueeze(-1)).squeeze(-1);
  return {(losses * counts).sum() / counts.sum()};
}

inline Tensors with_targets(Tensors floats, std::int64_t words) {
  Tensor targets =
      torch::randint(0, words, floats[0].sizes().slice(0, floats[0].dim() - 1).vec(), torch::kLong);
  if (targets.numel() > 2) {
    targets.flatten()[1] = -100;
  }
  floats.push_back(targets);
  return floats;
}

}  // namespace trireme::nn::testing
