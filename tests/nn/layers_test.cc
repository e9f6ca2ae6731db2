// Layers on the CPU: what they return is what LibTorch's operators return, and the graphs that GPUs
// get, with formulas in place of kernels, have the gradients that autograd finds for the formulas.

#include <functional>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include "layer_formulas.h"
#include "nn/by_kernels.h"
#include "trireme/core/error.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/kernels.h"
#include "trireme/nn/layer_norm.h"

namespace trireme::nn::layers_test {
namespace {

using namespace testing;

const torch::TensorOptions kInDouble = torch::dtype(torch::kDouble);
constexpr double kTolerance = 1e-11;

Tensor random(at::IntArrayRef sizes) {
  return torch::randn(sizes, kInDouble);
}

TEST(Layers, HaveTheGradientsOfTheirFormulas) {
  torch::manual_seed(1);
  for (const std::int64_t width : {1, 7, 24}) {
    for (const std::int64_t rows : {1, 5}) {
      const std::string what = std::to_string(rows) + " x " + std::to_string(width);
      const Tensors norm = {random({2, rows, width}), random({width}), random({width})};
      expect_same(
          [](const Tensors& in) -> Tensors {
            return {layer_norm_by_kernels(in[0], in[1], in[2], 1e-5)};
          },
          norm_formula,
          norm,
          kInDouble,
          kTolerance,
          "layer_norm " + what);
      Tensors added = norm;
      added.push_back(random({2, rows, width}));
      const Layer add_layer = [](const Tensors& in) -> Tensors {
        const auto [sum, normed] = add_layer_norm_by_kernels(
            in[0], in[3], in.size() > 4 ? std::optional(in[4]) : std::nullopt, in[1], in[2], 1e-5);
        return {sum, normed};
      };
      expect_same(add_layer, add_norm_formula, added, kInDouble, kTolerance, "added " + what);
      added.push_back(random({width}));
      expect_same(add_layer, add_norm_formula, added, kInDouble, kTolerance, "bias " + what);
      expect_same([](const Tensors& in) -> Tensors { return {bias_gelu_by_kernels(in[0], in[1])}; },
                  gelu_formula,
                  {random({2, rows, width}), random({width})},
                  kInDouble,
                  kTolerance,
                  "gelu " + what);
    }
  }
}

TEST(Layers, OneOfTwoResultsIsEnough) {
  torch::manual_seed(2);
  const Tensors in = {random({3, 6}), random({6}), random({6}), random({3, 6}), random({6})};
  for (const std::size_t which : {0U, 1U}) {
    expect_same(
        [&](const Tensors& given) -> Tensors {
          const auto both =
              add_layer_norm_by_kernels(given[0], given[3], given[4], given[1], given[2], 1e-5);
          const Tensor zero = (given[1].sum() + given[2].sum()) * 0;
          return {which == 0 ? both.sum + zero : both.normed};
        },
        [&](const Tensors& given) -> Tensors {
          const Tensor zero = (given[1].sum() + given[2].sum()) * 0;
          return {add_norm_formula(given)[which] + zero};
        },
        in,
        kInDouble,
        kTolerance,
        "result " + std::to_string(which));
  }
}

TEST(Layers, AttentionHasTheGradientsOfItsFormula) {
  torch::manual_seed(3);
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : {1, 6}) {
      expect_same(
          [&](const Tensors& in) -> Tensors { return {attention_by_kernels(in[0], 2, causal)}; },
          [&](const Tensors& in) -> Tensors { return {attention_formula(in[0], 2, causal)}; },
          {random({3, length, 3 * 8})},
          kInDouble,
          1e-7,  // LibTorch's own kernel on a CPU
          "attention");
      expect_same(
          [&](const Tensors& in) -> Tensors {
            return {self_attention_by_kernels(in[0], in[1], in[2], 2, causal)};
          },
          [&](const Tensors& in) -> Tensors {
            return {attention_formula(at::linear(in[0], in[1], in[2]), 2, causal)};
          },
          {random({3, length, 5}), random({24, 5}), random({24})},
          kInDouble,
          1e-7,
          "self_attention");
      expect_same(
          [&](const Tensors& in) -> Tensors {
            return {self_attention_by_kernels(in[0], in[1], Tensor(), 2, causal)};
          },
          [&](const Tensors& in) -> Tensors {
            return {attention_formula(at::linear(in[0], in[1]), 2, causal)};
          },
          {random({3, length, 5}), random({24, 5})},
          kInDouble,
          1e-7,
          "self_attention without a bias");
    }
  }
}

// On a CPU they are the operators that models have used so far.
TEST(Layers, HaveTheBitsOfLibTorchOnACpu) {
  torch::manual_seed(4);
  const Tensor x = torch::randn({2, 5, 12});
  const Tensor weight = torch::randn({12});
  const Tensor offset = torch::randn({12});
  const Tensor up = torch::randn({36, 12});
  const Tensor bias = torch::randn({36});
  EXPECT_FALSE(has_kernels(x));
  EXPECT_TRUE(layer_norm(x, weight, offset).equal(at::layer_norm(x, {12}, weight, offset)));
  const auto [sum, normed] = add_layer_norm(x, x * 2, std::nullopt, weight, offset);
  EXPECT_TRUE(sum.equal(x + x * 2));
  EXPECT_TRUE(normed.equal(at::layer_norm(sum, {12}, weight, offset)));
  EXPECT_TRUE(add_layer_norm(x, x, offset, weight, offset).sum.equal(x + (x + offset)));
  EXPECT_TRUE(linear_gelu(x, up, bias).equal(at::gelu(at::linear(x, up, bias), "tanh")));
  EXPECT_TRUE(bias_gelu(x, offset).equal(at::gelu(x + offset, "tanh")));
  const Tensor qkv = at::linear(x, up, bias);
  const auto parts = qkv.view({2, 5, 3, 4, 3}).permute({2, 0, 3, 1, 4}).unbind(0);
  const Tensor attended =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
          .transpose(1, 2)
          .reshape({2, 5, 12});
  EXPECT_TRUE(causal_attention(qkv, 4).equal(attended));
  EXPECT_TRUE(self_attention(x, up, bias, 4, true).equal(attended));
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Layers, RefuseWhatDoesNotFit) {
  const Tensor x = torch::randn({2, 3, 12});
  const Tensor row = torch::randn({12});
  EXPECT_EQ(refusal([&] { layer_norm(x, torch::randn({11}), row); }),
            "trireme::nn: a layer norm of 12 columns needs as many elements of its weight, found a "
            "tensor of 1 dimensions and 11 elements");
  EXPECT_NE(refusal([&] { add_layer_norm(x, x, torch::randn({1}), row, row); }).find("bias"),
            std::string::npos);
  EXPECT_NE(refusal([&] { add_layer_norm(x, x.slice(0, 0, 1), {}, row, row); }).find("branch"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              linear_gelu(x, torch::randn({5, 12}), row);
            }).find("5 columns"),
            std::string::npos);
  EXPECT_NE(refusal([&] { causal_attention(x, 5); }).find("5 heads"), std::string::npos);
  EXPECT_NE(refusal([&] { causal_attention(x, 0); }).find("0 heads"), std::string::npos);
}

TEST(Layers, RefuseGradientsOfGradients) {
  const Tensor x = torch::randn({2, 4}).set_requires_grad(true);
  const Tensor y = bias_gelu_by_kernels(x, torch::randn({4}));
  EXPECT_NE(refusal([&] {
              torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true);
            }).find("bias_gelu was asked for its own gradient"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::nn::layers_test
