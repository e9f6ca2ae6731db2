#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/torch.h"

// One function against another, with the gradients of all that it is given.

namespace trireme::nn::testing {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Layer = std::function<Tensors(const Tensors&)>;

// Outputs, then gradients of the inputs, of a sum of the outputs' elements with fixed weights.
inline Tensors learned(const Layer& layer, const Tensors& inputs) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.detach().clone().set_requires_grad(input.is_floating_point()));
  }
  Tensors all = layer(leaves);
  Tensor loss;
  for (Tensor& output : all) {
    const Tensor places = torch::arange(output.numel(), torch::kDouble).view(output.sizes());
    const Tensor exact = torch::round(torch::cos(places * 0.7 + 1) * 16) / 16;  // in every type
    const Tensor weights = exact.to(output.options());
    const Tensor part = (output * weights).sum();
    loss = loss.defined() ? loss + part : part;
    output = output.detach();
  }
  loss.backward();
  for (const Tensor& leaf : leaves) {
    if (leaf.requires_grad()) {
      all.push_back(leaf.grad());
    }
  }
  return all;
}

// `layer` on inputs of this type and device has what `plain` has in float64, up to `tolerance`
// times the largest of each result's elements.
inline void expect_same(const Layer& layer,
                        const Layer& plain,
                        const Tensors& inputs,
                        const torch::TensorOptions& where,
                        double tolerance,
                        const std::string& what) {
  Tensors rounded;
  Tensors exact;
  for (const Tensor& input : inputs) {
    const bool floats = input.is_floating_point();
    rounded.push_back(floats ? input.to(where) : input.to(where.device()));
    exact.push_back(floats ? rounded.back().to(torch::kCPU, torch::kDouble) : input);
  }
  const Tensors found = learned(layer, rounded);
  const Tensors expected = learned(plain, exact);
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i].defined()) << what << ": result " << i;
    ASSERT_EQ(found[i].sizes(), expected[i].sizes()) << what << ": result " << i;
    const Tensor here = found[i].to(torch::kCPU, torch::kDouble);
    const double scale = expected[i].numel() > 0 ? expected[i].abs().max().item<double>() : 0;
    const double error = here.numel() > 0 ? (here - expected[i]).abs().max().item<double>() : 0;
    EXPECT_LE(error, tolerance * std::max(scale, 0.05))
        << what << ": result " << i << " of " << scale;
  }
}

}  // namespace trireme::nn::testing
