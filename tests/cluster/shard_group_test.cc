// Stages inside of machines (EngineOptions::shard_group): the bits of DDP over all ranks, at every
// stage, also with 16-bit gradients and with parameters that some ranks do not use.

#include <cstring>

#include <gtest/gtest.h>

#include <torch/nn.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::shard_group_test {
namespace {

constexpr int kSteps = 3;

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(33, 57));
    sometimes = register_module("sometimes", torch::nn::Linear(57, 57));
    last = register_module("last", torch::nn::Linear(57, 11));
  }
  torch::Tensor forward(const torch::Tensor& x, bool detour) {
    auto h = torch::relu(first(x.to(first->weight.scalar_type())));
    if (detour) {
      h = torch::relu(sometimes(h));
    }
    return last(h).to(torch::kFloat32);
  }
  torch::nn::Linear first{nullptr}, sometimes{nullptr}, last{nullptr};
};

std::vector<float> weights_after(const std::shared_ptr<World>& world, EngineOptions options) {
  auto net = std::make_shared<Net>();
  if (world->rank() != 0) {
    const torch::NoGradGuard no_grad;  // rank 0's values count
    net->first->weight.fill_(9);
  }
  Engine<Net> engine(net, AdamW({.lr = 1e-2}), options, world);
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(100 + 10 * step + world->rank());
    const auto x = torch::randn({6, 33});
    const auto y = torch::randn({6, 11});
    const auto loss = torch::mse_loss(engine.forward(x, (world->rank() + step) % 2 == 0), y);
    engine.backward(loss);
    engine.step();
  }
  engine.unwrap();
  std::vector<float> all;
  for (const auto& parameter : net->parameters()) {
    const auto flat = parameter.detach().to(torch::kFloat32).contiguous();
    all.insert(all.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  return all;
}

// Each machine measures the norm for itself, but all ranks compare what they clip it to.
TEST(ShardGroup, ComparesBoundsOfClippingBetweenMachines) {
  testing::fork_ranks(4, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 4));
    auto net = std::make_shared<Net>();
    EngineOptions options;
    options.zero = 2;
    options.shard_group = ShardGroup::kMachine;
    Engine<Net> engine(net, AdamW({.lr = 1e-2}), options, world);
    const auto backward = [&] {
      engine.backward(engine.forward(torch::ones({6, 33}), true).pow(2).sum());
    };
    backward();
    EXPECT_THROW(engine.clip_grad_norm(rank < 2 ? 1.0 : 0.5), ConfigError);  // two on each
    backward();
    engine.clip_grad_norm(0.5);
    EXPECT_TRUE(engine.step());
  });
}

TEST(ShardGroup, GivesTheBitsOfDdpAtEveryStage) {
  testing::fork_ranks(4, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 4));
    for (const Precision precision : {Precision::kAsModel, Precision::kBFloat16}) {
      EngineOptions options;
      options.precision = precision;
      const auto expected = weights_after(world, options);
      for (const int zero : {1, 2, 3}) {
        options.zero = zero;
        options.shard_group = ShardGroup::kMachine;
        const auto found = weights_after(world, options);
        ASSERT_EQ(found.size(), expected.size());
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0)
            << "stage " << zero << ", precision " << static_cast<int>(precision);
      }
    }
    EngineOptions wrong;
    wrong.shard_group = ShardGroup::kMachine;
    EXPECT_THROW(weights_after(world, wrong), ConfigError);
  });
}

}  // namespace
}  // namespace trireme::shard_group_test
