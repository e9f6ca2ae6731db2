#include "gpu_layers.h"

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "number_text.h"
#include "samples.h"
#include "trireme/core/deadline.h"
#include "trireme/core/table.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/cross_entropy.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/layer_norm.h"
#include "trireme/tensor/torch_cuda.h"

namespace trireme::bench {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Layer = std::function<Tensor(const Tensors&)>;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kLength = 1024;
constexpr std::int64_t kWidth = 768;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kWords = 50257;
constexpr int kCalls = 10;

struct LayerRow {
  std::string name;
  Tensors inputs;
  Layer ours;
  Layer plain;
};

Tensor random(at::IntArrayRef sizes, double scale = 1) {
  const auto there = torch::dtype(at::kBFloat16).device(at::kCUDA);
  return (torch::randn(sizes, there) * scale).set_requires_grad(true);
}

struct LayerCost {
  double ms = 0;
  double bytes = 0;  // at most, beside its inputs
};

LayerCost cost_of(const Layer& layer, const Tensors& inputs, int rounds) {
  auto* allocator = c10::getDeviceAllocator(at::kCUDA);
  const Tensor gradient = torch::randn_like(layer(inputs)) * 1e-3;
  const auto call = [&] {
    torch::autograd::grad({layer(inputs)}, inputs, {gradient}, {}, false, /*allow_unused=*/true);
  };
  call();
  torch::cuda::synchronize();
  allocator->resetPeakStats(0);
  const auto before = allocator->getDeviceStats(0).allocated_bytes[0].current;
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      call();
    }
    torch::cuda::synchronize();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count() /
                    kCalls);
  }
  const auto most = allocator->getDeviceStats(0).allocated_bytes[0].peak;
  return {median(times), static_cast<double>(most - before)};
}

std::vector<LayerRow> rows_of_gpt2() {
  const Tensor targets =
      torch::randint(0, kWords, {kBatch, kLength}, at::TensorOptions(at::kLong)).to(at::kCUDA);
  const auto hidden = [] { return random({kBatch, kLength, kWidth}); };
  return {{"layer norm",
           {hidden(), random({kWidth}), random({kWidth})},
           [](const Tensors& in) { return nn::layer_norm(in[0], in[1], in[2]); },
           [](const Tensors& in) { return at::layer_norm(in[0], {kWidth}, in[1], in[2]); }},
          {"bias, sum and layer norm",
           {hidden(), random({kWidth}), random({kWidth}), hidden(), random({kWidth})},
           [](const Tensors& in) {
             const auto both = nn::add_layer_norm(in[0], in[3], in[4], in[1], in[2]);
             return both.sum + both.normed;
           },
           [](const Tensors& in) {
             const Tensor sum = in[0] + (in[3] + in[4]);
             return sum + at::layer_norm(sum, {kWidth}, in[1], in[2]);
           }},
          {"bias and GELU",
           {random({kBatch, kLength, 4 * kWidth}), random({4 * kWidth})},
           [](const Tensors& in) { return nn::bias_gelu(in[0], in[1]); },
           [](const Tensors& in) { return at::gelu(in[0] + in[1], "tanh"); }},
          {"linear layer and causal attention",
           {hidden(), random({3 * kWidth, kWidth}, 0.02), random({3 * kWidth})},
           [](const Tensors& in) { return nn::self_attention(in[0], in[1], in[2], kHeads, true); },
           [](const Tensors& in) {
             const auto parts = at::linear(in[0], in[1], in[2])
                                    .view({kBatch, kLength, 3, kHeads, kWidth / kHeads})
                                    .permute({2, 0, 3, 1, 4})
                                    .unbind(0);
             return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
                 .transpose(1, 2)
                 .reshape({kBatch, kLength, kWidth});
           }},
          {"linear layer and cross entropy of 50257 words",
           {hidden(), random({kWords, kWidth}, 0.02)},
           [targets](const Tensors& in) { return nn::linear_cross_entropy(in[0], in[1], targets); },
           [targets](const Tensors& in) {
             return torch::nn::functional::cross_entropy(at::linear(in[0], in[1]).flatten(0, 1),
                                                         targets.flatten());
           }}};
}

}  // namespace

nlohmann::json measure_gpu_layers(int rounds) {
  use_gpu(0);
  torch::manual_seed(0);
  nlohmann::json lines = nlohmann::json::array();
  Table table({"forward and backward", "ms", "LibTorch", "LibTorch / this", "memory", "LibTorch"});
  for (const LayerRow& row : rows_of_gpt2()) {
    const LayerCost ours = cost_of(row.ours, row.inputs, rounds);
    const LayerCost plain = cost_of(row.plain, row.inputs, rounds);
    lines.push_back({{"layer", row.name},
                     {"ms", ours.ms},
                     {"libtorch_ms", plain.ms},
                     {"memory_bytes", ours.bytes},
                     {"libtorch_memory_bytes", plain.bytes}});
    table.add({row.name,
               number_text(ours.ms),
               number_text(plain.ms),
               number_text(plain.ms / ours.ms),
               bytes_text(static_cast<long long>(ours.bytes)),
               bytes_text(static_cast<long long>(plain.bytes))});
  }
  std::printf(
      "Layers of %lld x %lld tokens of width %lld, bfloat16, deterministic; median of %d\n%s",
      static_cast<long long>(kBatch),
      static_cast<long long>(kLength),
      static_cast<long long>(kWidth),
      rounds,
      table.text().c_str());
  std::fflush(stdout);
  return lines;
}

}  // namespace trireme::bench
