// Averages in the place of weights, also of a layer that is frozen for a while, on some ranks only.

#include "train/averaged_weights.h"

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "support/ranks.h"
#include "trireme/comm/world.h"

namespace trireme::averaged_weights_test {
namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, fixed{nullptr};
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 1));
    fixed = register_module("fixed", torch::nn::Linear(1, 1));
    for (auto& parameter : fixed->parameters()) {
      parameter.requires_grad_(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return fixed->forward(second->forward(first->forward(x)));
  }
};
TORCH_MODULE(Net);

// With a decay of 1/2 the average is half way between the weights before a step and after it.
TEST(AveragedWeights, AreThoseOfLayersThatAreFrozenForAWhile) {
  for (const int size : {1, 2}) {
    testing::fork_ranks(size, [size, job = testing::unique_job()](int rank) {
      const auto world = init(testing::options_for(job, rank, size));
      Net model;
      const at::Tensor before = model->first->weight.detach().clone();
      const at::Tensor fixed = model->fixed->weight.detach().clone();
      EngineOptions options{.zero = 1};
      options.ema_decay = 0.5;
      Engine engine(model, Sgd({.lr = 0.5}), options, world);
      engine.backward(engine.forward(torch::ones({3, 4})).pow(2).mean());
      engine.step();
      const at::Tensor after = model->first->weight.detach().clone();
      EXPECT_FALSE(torch::equal(before, after));
      model->first->weight.requires_grad_(rank != 0);
      EXPECT_EQ(detail::trained_parameters(engine, *model).size(), 4U);
      detail::with_averages(engine, *model, [&] {
        EXPECT_TRUE(torch::allclose(model->first->weight, (before + after) / 2));
        EXPECT_TRUE(torch::equal(model->fixed->weight, fixed));
      });
      EXPECT_TRUE(torch::equal(model->first->weight, after));
    });
  }
}

}  // namespace
}  // namespace trireme::averaged_weights_test
