#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/parallel/engine.h"

// What tests of engines have in common: worlds, modes, and a model with some memory.

namespace trireme::engine_worlds {

namespace nn = torch::nn;
using torch::Tensor;

inline constexpr std::pair<int, Placement> kModes[] = {{0, Placement::kAutomatic},
                                                       {1, Placement::kAutomatic},
                                                       {2, Placement::kAutomatic},
                                                       {3, Placement::kMapped},
                                                       {3, Placement::kCopied}};

inline Tensor loss_of(const Tensor& output) {
  return (output - 0.5).pow(2).mean();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs body(world, zero, placement) for every mode in a world of `size` processes.
inline void in_every_mode(int size,
                          const std::function<void(std::shared_ptr<World>, int, Placement)>& body) {
  testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, size));
    for (const auto& [zero, placement] : kModes) {
      SCOPED_TRACE("stage " + std::to_string(zero) +
                   (placement == Placement::kCopied ? " copied" : ""));
      body(world, zero, placement);
    }
  });
}

// body(world, options) for every mode, on 1, 2 and 3 ranks, with steps of so many micro-batches.
inline void everywhere(
    std::int64_t micro_batches,
    const std::function<void(std::shared_ptr<World>, const EngineOptions&)>& body) {
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE("ranks " + std::to_string(size));
    in_every_mode(size, [&](std::shared_ptr<World> world, int zero, Placement placement) {
      EngineOptions options;
      options.zero = zero;
      options.placement = placement;
      options.micro_batches = micro_batches;
      body(std::move(world), options);
    });
  }
}

inline void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

struct WideImpl : nn::Module {
  std::vector<nn::Linear> layers;
  nn::BatchNorm1d norm{nullptr};
  explicit WideImpl(int count = 6) {
    torch::manual_seed(9);
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(512, 512)));
    }
    norm = register_module("norm", nn::BatchNorm1d(512));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) {
      x = torch::relu(layer->forward(x));
    }
    return norm->forward(x);
  }
};
TORCH_MODULE(Wide);

}  // namespace trireme::engine_worlds
