// Models that are built in parts.

#include "train/building.h"

#include <fstream>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/core/proc_files.h"
#include "trireme/parallel/sharded_model.h"
#include "trireme/tensor/memory_limit.h"
#include "trireme/train/trainer.h"

namespace trireme::building_test {
namespace {

using testing::fork_ranks;

std::int64_t resident(const char* what) {
  return 1024 * std::stoll(proc_field("/proc/self/status", what));
}

TrainSettings large_gpt() {
  return resolve(
      {.model = "gpt", .layers = 8, .width = 512, .heads = 8, .batch = 16, .ranks = 4, .zero = 3});
}

SampleShape text_shape() {
  return {.kind = SampleKind::kTokens, .length = 65, .classes = 256};
}

std::int64_t bytes_of(const torch::nn::Module& module) {
  std::int64_t bytes = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    bytes += parameter.numel() * 4;
  }
  return bytes;
}

TEST(Building, TakesARanksShareAndOneUnitAtStageThree) {
  fork_ranks(4, [job = testing::unique_job()](int rank) {
    const auto world = init(testing::options_for(job, rank, 4));
    TrainSettings settings = large_gpt();
    // What the program itself needs to build a model is there before.
    settings.layers = 1;
    make_model(settings, text_shape(), *world);
    settings = large_gpt();
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak so far
    const std::int64_t before = resident("VmRSS");
    const Trainable model = make_model(settings, text_shape(), *world);
    const std::int64_t peak = resident("VmHWM") - before;
    EXPECT_TRUE(model.in_parts);
    const std::int64_t whole = bytes_of(*model.module);
    EXPECT_GT(whole, 100'000'000);
    EXPECT_LT(peak, whole / 4 + settings.unit_bytes) << "of " << whole;
    EXPECT_GT(peak, whole / 4) << "else it was not measured";
    world->barrier().wait();
  });
}

TEST(Building, RefusesAModelThatIsLargerThanTheFreeMemory) {
  TrainSettings settings = large_gpt();
  settings.layers = 1;  // 12 MB
  const auto build = [&](const char* limit, double free) {
    const detail::BuildingLimit bound(limit, free);
    make_model(settings, text_shape());
  };
  EXPECT_NO_THROW(build("auto", 1e9));
  EXPECT_THROW(build("auto", 4e6), MemoryError);
  EXPECT_NO_THROW(build("none", 4e6));
  EXPECT_NO_THROW(build("1GB", 4e6)) << "asked for";
  EXPECT_NO_THROW(build("1MB", 1e9)) << "which is for the steps";
  EXPECT_NO_THROW(make_model(settings, text_shape())) << "it ends";
}

TEST(Building, CountsWhatIsBuiltInParts) {
  fork_ranks(2, [job = testing::unique_job()](int rank) {
    const auto world = init(testing::options_for(job, rank, 2));
    TrainSettings settings = large_gpt();
    settings.layers = 1;
    const auto build = [&](std::uint64_t most) {
      MemoryLimit::set(0, MemoryLimit::used_bytes() + most);
      build_sharded(*world, [&] { return make_model(settings, text_shape()).module; });
    };
    EXPECT_THROW(build(3'000'000), MemoryError) << "the largest tensor has 4 MB";
    EXPECT_NO_THROW(build(9'000'000)) << "whole, it has 12 MB";
    world->barrier().wait();
  });
}

// With a convolution, for which oneDNN takes memory and gives it back, to see how many features
// there are; and with a part that is built divided by itself.
struct CuriousImpl : torch::nn::Module {
  explicit CuriousImpl(Communicator* ranks = nullptr) {
    torch::manual_seed(1);
    auto conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 5).padding(2)));
    {
      const torch::NoGradGuard no_grad;
      const auto features = conv->forward(torch::zeros({2, 3, 64, 64})).flatten(1).size(1);
      register_module("head", torch::nn::Linear(features / 64, 30));
    }
    const auto make = [] { return std::make_shared<torch::nn::LinearImpl>(300, 301); };
    register_module("part", ranks == nullptr ? make() : build_sharded(*ranks, make));
  }
};

TEST(Building, GoesOnInsideOfItselfAndInConvolutions) {
  for (const bool limit : {false, true}) {
    for (const int size : {1, 2}) {
      fork_ranks(size, [=, job = testing::unique_job()](int rank) {
        if (limit) {
          MemoryLimit::set(0);
        }
        const auto world = init(testing::options_for(job, rank, size));
        const CuriousImpl whole;
        const auto parts =
            build_sharded(*world, [&] { return std::make_shared<CuriousImpl>(world.get()); });
        EXPECT_EQ(parts->parameters().size(), whole.parameters().size());
        EXPECT_EQ(torch::ones({3}).sum().item<float>(), 3);
        world->barrier().wait();
      });
    }
  }
}

TEST(Building, MayBeDoneByRanksThatAreThreads) {
  for (int i = 0; i < 20; ++i) {
    testing::spawn_world(2, [](World& world) {
      build_sharded(world, [] { return std::make_shared<torch::nn::LinearImpl>(300, 301); });
      world.barrier().wait();
    });
  }
  EXPECT_EQ(torch::ones({3}).sum().item<float>(), 3);
}

TEST(Building, GivesTheSameWeightsInPartsAndWhole) {
  for (const char* name : {"gpt", "bert", "mlp", "convnet"}) {
    fork_ranks(3, [&, job = testing::unique_job()](int rank) {
      const auto world = init(testing::options_for(job, rank, 3));
      const TrainSettings settings =
          resolve({.model = name, .hidden = {300}, .seed = 5, .ranks = 3, .zero = 3});
      const SampleShape images{.dense = {1, 28, 28}, .classes = 10};
      const SampleShape shape = settings.sequence > 0 ? text_shape() : images;
      const Trainable whole = make_model(settings, shape);
      const Trainable parts = make_model(settings, shape, *world);
      EXPECT_FALSE(whole.in_parts);
      EXPECT_TRUE(parts.in_parts);
      const auto expected = whole.module->named_parameters();
      for (const auto& item : parts.module->named_parameters()) {
        EXPECT_TRUE(at::equal(item.value(), expected[item.key()])) << name << " " << item.key();
      }
      world->barrier().wait();
    });
  }
}

TEST(Building, IsWholeWhereNothingIsDivided) {
  fork_ranks(2, [job = testing::unique_job()](int rank) {
    const auto world = init(testing::options_for(job, rank, 2));
    TrainSettings settings = large_gpt();
    settings.layers = 1;
    settings.zero = 2;
    EXPECT_FALSE(make_model(settings, text_shape(), *world).in_parts);
  });
}

}  // namespace
}  // namespace trireme::building_test
