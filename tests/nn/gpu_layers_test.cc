// The kernels: every layer on a GPU, in each type of elements and of odd sizes, against its formula
// in float64. (layers_test.cc is about the graphs around them.)

#include <unistd.h>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "layer_formulas.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/cross_entropy.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/kernels.h"
#include "trireme/nn/layer_norm.h"
#include "trireme/tensor/torch_cuda.h"

namespace trireme::nn::gpu_layers_test {
namespace {

using namespace testing;

struct Type {
  torch::ScalarType type;
  double tolerance;
};
constexpr Type kTypes[] = {{torch::kFloat, 2e-5}, {torch::kHalf, 2e-3}, {torch::kBFloat16, 1.6e-2}};

class GpuLayers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/dev/nvidiactl", F_OK) != 0) {
      GTEST_SKIP() << "no GPU here: /dev/nvidiactl is not there";
    }
    if (torch_cuda_library().empty()) {
      GTEST_SKIP() << "no GPU here: this LibTorch has no CUDA";
    }
    use_gpu(0);
    torch::manual_seed(5);
  }

  static void expect(const Layer& layer,
                     const Layer& plain,
                     const Tensors& inputs,
                     const Type& type,
                     const std::string& what) {
    const auto where = torch::dtype(type.type).device(torch::kCUDA);
    expect_same(
        layer, plain, inputs, where, type.tolerance, what + " in " + c10::toString(type.type));
    Tensors there;
    for (const Tensor& input : inputs) {
      there.push_back(input.is_floating_point() ? input.to(where) : input.to(torch::kCUDA));
    }
    const Tensors once = learned(layer, there);
    const Tensors again = learned(layer, there);
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(once[i].equal(again[i])) << what << ": other bits in result " << i;
    }
  }
};

std::string sizes(std::int64_t rows, std::int64_t width) {
  return std::to_string(rows) + " x " + std::to_string(width);
}

constexpr std::pair<std::int64_t, std::int64_t> kSizes[] = {
    {1, 768}, {37, 3}, {64, 7}, {100, 100}, {3001, 768}, {333, 1600}, {5, 8192}};

TEST_F(GpuLayers, Norms) {
  for (const Type& type : kTypes) {
    for (const auto& [rows, width] : kSizes) {
      const auto whole = [](at::IntArrayRef of) {
        return torch::randint(-8, 9, of, torch::kFloat);
      };
      Tensors in = {whole({rows, width}), torch::randn({width}), torch::randn({width})};
      expect([](const Tensors& t) -> Tensors { return {layer_norm(t[0], t[1], t[2])}; },
             norm_formula,
             in,
             type,
             "layer_norm " + sizes(rows, width));
      const Layer add = [](const Tensors& t) -> Tensors {
        const auto both = add_layer_norm(
            t[0], t[3], t.size() > 4 ? std::optional(t[4]) : std::nullopt, t[1], t[2]);
        return {both.sum, both.normed};
      };
      in.push_back(whole({rows, width}));  // sums are exact in every type
      expect(add, add_norm_formula, in, type, "add_layer_norm " + sizes(rows, width));
      in.push_back(whole({width}));
      expect(add, add_norm_formula, in, type, "add_layer_norm with bias " + sizes(rows, width));
    }
  }
}

TEST_F(GpuLayers, NormsOfOneColumnAreTheirOffset) {
  const auto there = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  const Tensor x = torch::randn({9, 1}, there).set_requires_grad(true);
  const Tensor offset = torch::randn({1}, there);
  const Tensor y = layer_norm(x, torch::randn({1}, there), offset);
  EXPECT_TRUE(y.equal(offset.expand({9, 1})));
  y.sum().backward();
  EXPECT_TRUE(x.grad().eq(0).all().item<bool>());
}

TEST_F(GpuLayers, Gelu) {
  for (const Type& type : kTypes) {
    for (const auto& [rows, width] : kSizes) {
      expect([](const Tensors& t) -> Tensors { return {bias_gelu(t[0], t[1])}; },
             gelu_formula,
             {torch::randn({rows, width}) * 3, torch::randn({width})},
             type,
             "bias_gelu " + sizes(rows, width));
    }
  }
}

TEST_F(GpuLayers, Attention) {
  for (const Type& type : kTypes) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t part : {5, 8, 64}) {
        const std::int64_t width = 3 * part;
        expect([&](const Tensors& t) -> Tensors { return {attention(t[0], 3, causal)}; },
               [&](const Tensors& t) -> Tensors { return {attention_formula(t[0], 3, causal)}; },
               {torch::randn({2, 130, 3 * width})},
               {type.type, 2 * type.tolerance},
               "attention of " + std::to_string(part));
        expect(
            [&](const Tensors& t) -> Tensors {
              return {self_attention(t[0], t[1], t[2], 3, causal)};
            },
            [&](const Tensors& t) -> Tensors {
              return {attention_formula(at::linear(t[0], t[1], t[2]), 3, causal)};
            },
            {torch::randn({2, 65, 32}),
             torch::randn({3 * width, 32}) * 0.2,
             torch::randn({3 * width})},
            {type.type, 3 * type.tolerance},
            "self_attention of " + std::to_string(part));
      }
    }
  }
}

TEST_F(GpuLayers, CrossEntropy) {
  for (const Type& type : kTypes) {
    for (const auto& [rows, words] : kSizes) {
      expect([](const Tensors& t) -> Tensors { return {linear_cross_entropy(t[0], t[1], t[2])}; },
             [](const Tensors& t) { return cross_entropy_formula(t, -100); },
             with_targets({torch::randn({rows, 24}), torch::randn({words, 24}) * 0.5}, words),
             {type.type, 2 * type.tolerance},
             "linear_cross_entropy " + sizes(rows, words));
    }
  }
}

TEST_F(GpuLayers, CrossEntropyNeverHasAllScores) {
  const auto there = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  const Tensor x = torch::randn({32 * 1024, 64}, there).set_requires_grad(true);
  const Tensor weight = torch::randn({50257, 64}, there).set_requires_grad(true);
  const Tensor targets = torch::randint(0, 50257, {32 * 1024}, torch::kLong).to(torch::kCUDA);
  auto* allocator = c10::getDeviceAllocator(torch::kCUDA);
  const auto peak = [&] { return allocator->getDeviceStats(0).allocated_bytes[0].peak; };
  allocator->resetPeakStats(0);
  const auto before = allocator->getDeviceStats(0).allocated_bytes[0].current;
  linear_cross_entropy(x, weight, targets).backward();
  EXPECT_LT(peak() - before, std::int64_t{32 * 1024} * 50257 * 2 / 3);
}

TEST_F(GpuLayers, WhatKernelsDoNotTakeGoesToLibTorch) {
  const auto there = torch::device(torch::kCUDA);
  const Tensor x = torch::randn({6, 10}, there);
  const Tensor row = torch::randn({10}, there);
  EXPECT_TRUE(has_kernels(x));
  EXPECT_FALSE(has_kernels(x.to(torch::kDouble)));
  const auto expect_norm = [&](const Tensor& in, const Tensor& weight) {
    EXPECT_TRUE(
        layer_norm(in, weight, weight).equal(at::layer_norm(in, {in.size(-1)}, weight, weight)));
  };
  expect_norm(x.to(torch::kDouble), row.to(torch::kDouble));
  expect_norm(torch::randn({2, 8193}, there), torch::randn({8193}, there));
  expect_norm(x.slice(0, 0, 0), row);
  // As if they lay otherwise.
  const Tensor across = torch::randn({10, 6}, there).t();
  EXPECT_TRUE(layer_norm(across, row, row).equal(layer_norm(across.contiguous(), row, row)));
  const Tensor shifted = torch::randn({61}, there).slice(0, 1).view({6, 10});
  EXPECT_TRUE(at::allclose(
      layer_norm(shifted, row, row), at::layer_norm(shifted, {10}, row, row), 1e-5, 1e-6));
}

}  // namespace
}  // namespace trireme::nn::gpu_layers_test
