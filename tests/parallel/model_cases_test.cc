// Models, tensors and losses that meet the library from the side: gradients of gradients, tensors
// that are not the model's, memory that is not one tensor's. Each gives what LibTorch alone gives,
// or is refused by name.

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/autocast.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/engine.h"
#include "trireme/parallel/sharded_model.h"
#include "trireme/parallel/sync_batch_norm.h"
#include "trireme/tensor/shared_tensor.h"
#include "trireme/tensor/span.h"

namespace trireme::model_cases_test {
namespace {

namespace nn = torch::nn;
using testing::fork_ranks;
using testing::message_of;
using torch::Tensor;

constexpr std::pair<int, Placement> kModes[] = {{0, Placement::kAutomatic},
                                                {1, Placement::kAutomatic},
                                                {2, Placement::kAutomatic},
                                                {3, Placement::kMapped},
                                                {3, Placement::kCopied}};

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    SCOPED_TRACE(detail::concat("ranks ", size));
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

// body(world, options) for every stage and placement.
void in_every_mode(int size,
                   const std::function<void(std::shared_ptr<World>, EngineOptions)>& body) {
  in_world(size, [&](std::shared_ptr<World> world) {
    for (const auto& [zero, placement] : kModes) {
      SCOPED_TRACE(
          detail::concat("stage ", zero, placement == Placement::kCopied ? " copied" : ""));
      EngineOptions options;
      options.zero = zero;
      options.placement = placement;
      body(world, options);
    }
  });
}

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(6, 10));
    second = register_module("second", nn::Linear(10, 2));
  }
  Tensor forward(const Tensor& x) { return second->forward(torch::tanh(first->forward(x))); }
};
TORCH_MODULE(Net);

Tensor input_of(int step, int who) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + who));
  return torch::randn({4, 6}, generator, torch::kFloat);
}

Tensor loss_of(const Tensor& output) {
  return (output.to(torch::kFloat) - 0.5).pow(2).mean();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- SyncBatchNorm

using Norm = std::function<Tensor(const Tensor&)>;

// The gradient of the cubed output for the input, as something to be differentiated again: the
// gradient penalty of a GAN.
Tensor penalty(const Norm& norm, const Tensor& x) {
  const Tensor y = (norm(x) * torch::tensor({0.7, -1.3, 0.4}, torch::kDouble)).pow(3).sum();
  const Tensor gradient = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
  return gradient.pow(2).sum() + gradient.pow(3).sum();
}

TEST(SyncBatchNormCases, GradientsOfGradientsAreThoseOfTheJoinedBatch) {
  for (const int size : {1, 2, 3}) {
    in_world(size, [&](std::shared_ptr<World> world) {
      auto generator = at::detail::createCPUGenerator(17);
      const Tensor data = torch::randn({4 * size, 3}, generator, torch::kDouble);
      const Tensor weight = torch::tensor({0.5, 1.5, -0.8}, torch::kDouble);

      nn::BatchNorm1d plain(3);
      plain->to(torch::kDouble);
      plain->weight.data().copy_(weight);
      const Norm whole = [&](const Tensor& x) { return plain->forward(x); };
      const Tensor all = data.clone().requires_grad_();
      const auto expected =
          torch::autograd::grad({penalty(whole, all)}, {all, plain->weight, plain->bias});

      SyncBatchNorm sync(nn::BatchNormOptions(3), world);
      sync->to(torch::kDouble);
      sync->weight.data().copy_(weight);
      const Tensor mine = data.narrow(0, 4 * world->rank(), 4).clone().requires_grad_();
      const auto found =
          torch::autograd::grad({penalty([&](const Tensor& x) { return sync->forward(x); }, mine)},
                                {mine, sync->weight, sync->bias});

      const Tensor own = expected[0].narrow(0, 4 * world->rank(), 4);
      EXPECT_TRUE(torch::allclose(found[0], own, 1e-9, 1e-9)) << found[0] << own;
      for (const std::size_t which : {1, 2}) {  // each rank has its part
        Tensor sum = found[which].clone();
        world->all_reduce(sum).wait();
        EXPECT_TRUE(torch::allclose(sum, expected[which], 1e-9, 1e-9)) << which;
      }
      // And the joined batch's are those of differences.
      for (const std::int64_t row : {0L, 4L * world->rank() + 1}) {
        const auto moved = [&](double by) {
          Tensor other = data.clone();
          other[row][1] += by;
          return penalty(whole, other.requires_grad_()).item<double>();
        };
        const double slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
        EXPECT_NEAR(
            expected[0][row][1].item<double>(), slope, 1e-5 * std::max(1.0, std::abs(slope)));
      }
    });
  }
}

// --- DataParallel

TEST(DataParallelCases, GradientsThatAreKeptStayWhatTheyWere) {
  for (const int size : {1, 2}) {
    in_world(size, [](std::shared_ptr<World> world) {
      Net model;
      DataParallel parallel(model, {}, world);
      const auto averages = [&](int step) {  // by LibTorch alone
        Net reference;
        Tensor total;
        for (int rank = 0; rank < world->size(); ++rank) {
          const Tensor one = loss_of(reference->forward(input_of(step, rank)));
          total = total.defined() ? total + one : one;
        }
        return torch::autograd::grad({total / world->size()}, reference->parameters());
      };
      std::vector<std::vector<Tensor>> kept;
      std::vector<Tensor> views;
      for (int step = 0; step < 3; ++step) {
        {
          const auto scope = parallel.no_sync();
          parallel.backward(0 * loss_of(parallel.forward(input_of(step, 9))));
        }
        parallel.backward(loss_of(parallel.forward(input_of(step, world->rank()))));
        kept.emplace_back();
        for (Tensor& parameter : model->parameters()) {
          kept.back().push_back(parameter.grad());
        }
        views.push_back(model->first->weight.grad().narrow(0, 1, 2));
        for (Tensor& parameter : model->parameters()) {
          parameter.mutable_grad().reset();
        }
      }
      for (int step = 0; step < 3; ++step) {
        const auto expected = averages(step);
        const auto& found = kept[static_cast<std::size_t>(step)];
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-4, 1e-6)) << step << " " << i;
        }
        EXPECT_TRUE(torch::equal(views[static_cast<std::size_t>(step)], found[0].narrow(0, 1, 2)));
      }
    });
  }
}

// Where nobody keeps a gradient, the next one is in the same memory: there is no copy.
TEST(DataParallelCases, GradientsThatAreNotKeptAreNotCopied) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    DataParallel parallel(model, {}, world);
    std::vector<const void*> places;
    for (int step = 0; step < 3; ++step) {
      parallel.backward(loss_of(parallel.forward(input_of(step, world->rank()))));
      places.push_back(model->first->weight.grad().const_data_ptr());
      for (Tensor& parameter : model->parameters()) {
        parameter.mutable_grad().reset();
      }
    }
    EXPECT_EQ(places[0], places[1]);
    EXPECT_EQ(places[0], places[2]);
  });
}

// The discriminator's gradients of the generator's loss are nobody's.
TEST(DataParallelCases, AGeneratorsLossLeavesNothingWithItsDiscriminator) {
  const auto noise = [](int round) { return input_of(round, 7).narrow(1, 0, 2); };
  const auto make_generator = [] {
    torch::manual_seed(8);
    return nn::Linear(2, 6);
  };
  for (const int size : {1, 2}) {
    in_world(size, [&](std::shared_ptr<World> world) {
      nn::Linear expected = make_generator();
      Net expected_discriminator;
      {
        torch::optim::SGD g(expected->parameters(), 0.1);
        torch::optim::SGD d(expected_discriminator->parameters(), 0.1);
        for (int round = 0; round < 3; ++round) {
          d.zero_grad();
          loss_of(expected_discriminator->forward(expected->forward(noise(round)).detach()))
              .backward();
          d.step();
          g.zero_grad();
          loss_of(expected_discriminator->forward(expected->forward(noise(round)))).backward();
          g.step();
        }
      }
      const auto check = [&](const nn::Linear& generator, const Net& discriminator) {
        EXPECT_TRUE(torch::allclose(generator->weight, expected->weight, 1e-5, 1e-7));
        EXPECT_TRUE(torch::allclose(
            discriminator->first->weight, expected_discriminator->first->weight, 1e-5, 1e-7));
      };
      Net discriminator;
      DataParallel d(discriminator, {}, world);
      torch::optim::SGD d_step(discriminator->parameters(), 0.1);
      const auto train_discriminator = [&](const Tensor& fake) {
        d_step.zero_grad();
        d.backward(loss_of(d.forward(fake)));
        d_step.step();
      };
      nn::Linear generator = make_generator();
      {
        DataParallel g(generator, {}, world);
        torch::optim::SGD g_step(generator->parameters(), 0.1);
        for (int round = 0; round < 3; ++round) {
          train_discriminator(g.forward(noise(round)).detach());
          g_step.zero_grad();
          d_step.zero_grad();
          g.backward(loss_of(d.forward(g.forward(noise(round)))));
          EXPECT_FALSE(discriminator->first->weight.grad().defined());
          g_step.step();
        }
      }
      check(generator, discriminator);
      // Without anybody's backward it is a mistake.
      EXPECT_TRUE(contains(message_of<ConfigError>(
                               [&] { loss_of(discriminator->forward(input_of(0, 0))).backward(); }),
                           "DataParallel::backward()"));
      // An engine's generator.
      {
        const torch::NoGradGuard no_grad;
        Net fresh;
        for (std::size_t i = 0; i < fresh->parameters().size(); ++i) {
          discriminator->parameters()[i].copy_(fresh->parameters()[i]);
        }
      }
      nn::Linear other = make_generator();
      Engine g(other, Sgd({.lr = 0.1}), {.zero = 3}, world);
      for (int round = 0; round < 3; ++round) {
        train_discriminator(g.forward(noise(round)).detach());
        g.backward(loss_of(d.forward(g.forward(noise(round)))));
        g.step();
      }
      check(other, discriminator);
    });
  }
}

// --- build_sharded

constexpr std::int64_t kSide = 160;  // 100 KiB: large enough to be divided

struct LooksOutsideImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr};
  Tensor table;
  LooksOutsideImpl(const Tensor& outside, Tensor* kept, bool fail) {
    torch::manual_seed(1);
    const float mean = outside.narrow(0, 0, 4).mean().item<float>();  // a look at the data
    table = register_buffer("table", torch::full({kSide, kSide}, 7.0F));
    if (kept != nullptr) {
      *kept = torch::full({kSide, kSide}, 5.0F);
    }
    a = register_module("a", nn::Linear(kSide, kSide));
    b = register_module("b", nn::Linear(kSide, kSide));
    const torch::NoGradGuard no_grad;
    a->bias.fill_(mean * 0);
    outside.view({-1}).narrow(0, 0, 1).add_(1);
    if (fail) {
      throw std::runtime_error("the constructor fails");
    }
  }
  Tensor forward(const Tensor& x) { return b->forward(torch::tanh(a->forward(x))); }
};

TEST(ShardedModelCases, WhatWasThereBeforeStaysAsItIs) {
  for (const int size : {1, 2}) {
    for (const bool fail : {false, true}) {
      in_world(size, [&](std::shared_ptr<World> world) {
        SCOPED_TRACE(fail ? "fails" : "succeeds");
        const auto mine = static_cast<float>(world->rank() + 1);
        const Tensor shard = torch::full({kSide, kSide}, mine);
        const void* place = shard.const_data_ptr();
        Tensor kept;
        std::shared_ptr<LooksOutsideImpl> model;
        const auto build = [&] {
          model = build_sharded(
              *world, [&] { return std::make_shared<LooksOutsideImpl>(shard, &kept, fail); });
        };
        if (fail) {
          EXPECT_TRUE(contains(message_of<std::runtime_error>(build), "the constructor fails"));
        } else {
          build();
          EXPECT_TRUE(torch::equal(model->table, torch::full({kSide, kSide}, 7.0F)));
        }
        ASSERT_EQ(shard.storage().nbytes(), sizeof(float) * kSide * kSide);
        EXPECT_EQ(shard.const_data_ptr(), place);
        Tensor expected = torch::full({kSide, kSide}, mine);
        expected[0][0] += 1;
        EXPECT_TRUE(torch::equal(shard, expected));
        // What the constructor made and somebody else has is whole, too.
        ASSERT_EQ(kept.storage().nbytes(), sizeof(float) * kSide * kSide);
        EXPECT_TRUE(torch::equal(kept, torch::full({kSide, kSide}, 5.0F)));
        world->barrier().wait();
      });
    }
  }
}

struct TiedImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr};
  Tensor upper;
  TiedImpl(bool tie, bool view) {
    torch::manual_seed(1);
    a = register_module("a", nn::Linear(nn::LinearOptions(kSide, kSide).bias(false)));
    b = register_module("b", nn::Linear(nn::LinearOptions(kSide, kSide).bias(false)));
    if (tie) {
      b->weight.set_data(a->weight.data());
    }
    if (view) {
      upper = a->weight.detach().narrow(0, 0, 1);
    }
  }
  Tensor forward(const Tensor& x) { return b->forward(torch::tanh(a->forward(x))); }
};

TEST(ShardedModelCases, TiesAndKeptViewsAreRefusedAsInAModelBuiltWhole) {
  for (const int size : {1, 2}) {
    in_world(size, [](std::shared_ptr<World> world) {
      const auto engine_of = [&](const std::shared_ptr<TiedImpl>& model) {
        Engine<TiedImpl>(model, Sgd({.lr = 0.1}), {.zero = 3}, world).unwrap();
      };
      for (const bool tie : {false, true}) {
        SCOPED_TRACE(tie ? "tied" : "a view is kept");
        const auto make = [&] { return std::make_shared<TiedImpl>(tie, !tie); };
        const std::string expected = message_of<ConfigError>([&] { engine_of(make()); });
        EXPECT_TRUE(contains(expected,
                             tie ? "a.weight and b.weight are two tensors on one memory"
                                 : "the memory of parameter a.weight"))
            << expected;
        EXPECT_EQ(message_of<ConfigError>([&] { engine_of(build_sharded(*world, make)); }),
                  expected);
        // The same, after the model was built.
        const auto later =
            build_sharded(*world, [&] { return std::make_shared<TiedImpl>(false, false); });
        if (tie) {
          later->b->weight.set_data(later->a->weight.data());
        } else {
          later->upper = later->a->weight.detach().narrow(0, 0, 1);
        }
        EXPECT_EQ(message_of<ConfigError>([&] { engine_of(later); }), expected);
      }
      engine_of(build_sharded(*world, [] { return std::make_shared<TiedImpl>(false, false); }));
    });
  }
}

// --- parameters and collectives

TEST(CollectiveCases, ParametersOfAnEngineAreReadAndNotWritten) {
  for (const int size : {1, 2}) {
    in_every_mode(size, [](std::shared_ptr<World> world, const EngineOptions& options) {
      Net model;
      const Tensor expected = model->first->weight.detach().clone();
      {
        Engine engine(model, Sgd({.lr = 0.1}), options, world);
        for (const bool under_way : {false, true}) {  // with and without a graph on it
          const Tensor out = under_way ? engine.forward(input_of(0, 0)) : Tensor();
          for (const Tensor& tensor :
               {model->first->weight.data(), model->first->weight.detach()[2]}) {
            const std::string message =
                message_of<ConfigError>([&] { world->all_reduce(tensor).wait(); });
            EXPECT_TRUE(contains(message, "parameter first.weight")) << message;
            EXPECT_TRUE(contains(message, "gathered(")) << message;
            EXPECT_TRUE(contains(message, "clone() it first")) << message;
          }
        }
        EXPECT_TRUE(torch::equal(model->first->weight, expected));
        Tensor all = torch::zeros({world->size(), 10, 6});
        const auto compare = [&](const Tensor& weight) { world->all_gather(weight, all).wait(); };
        if (options.placement == Placement::kCopied) {
          const std::string message =
              message_of<ConfigError>([&] { compare(model->first->weight.data()); });
          EXPECT_TRUE(contains(message, "parameter first.weight")) << message;
          EXPECT_TRUE(contains(message, "clone() it first")) << message;
          compare(model->first->weight.detach().clone());
        } else {
          compare(model->first->weight.data());
        }
        for (int rank = 0; rank < world->size(); ++rank) {
          EXPECT_TRUE(torch::equal(all[rank], expected));
        }
        {
          const auto scope = engine.gathered();
          world->all_reduce(model->first->weight.data()).wait();
        }
        EXPECT_TRUE(torch::equal(model->first->weight, expected * world->size()));
        engine.unwrap();
      }
      world->all_reduce(model->first->weight.data()).wait();  // it is the model's own again
    });
  }
}

TEST(CollectiveCases, SizesOfSharedTensorsAreChecked) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const std::vector<std::int64_t>& sizes :
         {std::vector<std::int64_t>{-1}, {3, -2}, {1LL << 40, 1LL << 40}}) {
      const std::string message =
          message_of<ConfigError>([&] { (void)shared_tensor(*world, sizes); });
      EXPECT_TRUE(contains(message, "shared_tensor")) << message;
      EXPECT_TRUE(contains(message, std::to_string(sizes.back()))) << message;
    }
    EXPECT_EQ(shared_tensor(*world, {0, 3}).numel(), 0);
    EXPECT_EQ(shared_tensor(*world, {}).numel(), 1);
    EXPECT_EQ(shared_tensor(*world, {2, 3}, at::kDouble).nbytes(), 48U);
  });
}

// --- Autocast

// LibTorch's own scope, around one forward pass.
Tensor low_forward(Net& model, const Tensor& x) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  Tensor out = model->forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  return out;
}

std::vector<float> low_losses() {
  std::vector<float> losses;
  Net model;
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const Tensor loss = loss_of(low_forward(model, input_of(0, 0)));
    losses.push_back(loss.item<float>());
    loss.backward();
    optimizer.step();
  }
  EXPECT_LT(losses[1], 0.2 * losses[0]);  // an update that cannot be overlooked
  return losses;
}

TEST(AutocastCases, AScopeAroundTheLoopSeesEveryUpdate) {
  in_every_mode(2, [](std::shared_ptr<World> world, const EngineOptions& options) {
    const std::vector<float> expected = low_losses();
    Net model;
    Engine engine(model, Sgd({.lr = 0.5}), options, world);
    const Tensor x = input_of(0, 0);  // the same on all ranks, as is then the average
    const Autocast scope;
    for (std::size_t step = 0; step < expected.size(); ++step) {
      const Tensor loss = loss_of(engine.forward(x));
      EXPECT_NEAR(loss.item<float>(), expected[step], 0.02 * expected[step]) << step;
      engine.backward(loss);
      engine.step();
    }
    // Other ways in which weights change.
    const auto output = [&] { return engine.forward(x).to(torch::kFloat); };
    EXPECT_GT(output().abs().sum().item<float>(), 0);
    {
      const auto gathered = engine.gathered();
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : model->parameters()) {
        parameter.zero_();
      }
    }
    EXPECT_EQ(output().abs().sum().item<float>(), 0);
    engine.restore([](const StateView& into) {
      for (const StateSlice& slice : into.slices) {
        if (into.tensors[slice.tensor].kind == kWeightKind) {
          std::fill_n(reinterpret_cast<float*>(slice.data), slice.range.size(), 1.0F);
        }
      }
    });
    EXPECT_GT(output().abs().sum().item<float>(), 1);
  });
  in_world(2, [](std::shared_ptr<World> world) {
    const std::vector<float> expected = low_losses();
    Net model;
    DataParallel parallel(model, {}, world);
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    const Autocast scope;
    for (std::size_t step = 0; step < expected.size(); ++step) {
      optimizer.zero_grad();
      const Tensor loss = loss_of(parallel.forward(input_of(0, 0)));
      EXPECT_NEAR(loss.item<float>(), expected[step], 0.02 * expected[step]) << step;
      parallel.backward(loss);
      optimizer.step();
    }
  });
}

// --- parameters without elements, elements that are shown many times

struct ZeroImpl : nn::Module {
  nn::Linear l{nullptr};
  Tensor none, frozen, wide;
  ZeroImpl() {
    torch::manual_seed(1);
    none = register_parameter("none", torch::zeros({0, 3}));
    frozen = register_parameter("frozen", torch::zeros({0}, torch::kInt), false);
    wide = register_parameter("wide", torch::zeros({3, 0}, torch::kDouble));
    l = register_module("l", nn::Linear(3, 3));
  }
  Tensor forward(const Tensor& x) {
    return l->forward(x) + none.sum() + wide.sum().to(torch::kFloat) + frozen.sum();
  }
};
TORCH_MODULE(Zero);

TEST(ShapeCases, ParametersWithoutElementsAreTrainedWithTheOthers) {
  const auto loss = [](const Tensor& out) { return out.pow(2).mean(); };
  const Tensor x = torch::ones({2, 3});
  const auto trained_plainly = [&] {
    Zero model;
    torch::optim::SGD optimizer(model->l->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss(model->forward(x)).backward();
      optimizer.step();
    }
    return model->l->weight.detach();
  };
  for (const int size : {1, 2}) {
    in_every_mode(size, [&](std::shared_ptr<World> world, const EngineOptions& base) {
      for (const std::size_t unit_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
        EngineOptions options = base;
        options.unit_bytes = unit_bytes;
        options.ema_decay = 0.5;
        Zero model;
        Engine engine(model, Sgd({.lr = 0.1}), options, world);
        for (int step = 0; step < 2; ++step) {
          engine.backward(loss(engine.forward(x)));
          for (const char* name : {"none", "wide"}) {
            EXPECT_EQ(engine.grad(name).numel(), 0) << name;
          }
          engine.step();
        }
        EXPECT_EQ(engine.average("wide").numel(), 0);
        {
          const auto scope = engine.gathered();
          EXPECT_EQ(model->wide.sizes(), at::IntArrayRef({3, 0}));
        }
        (void)engine.state();
        engine.unwrap();
        EXPECT_EQ(model->none.sizes(), at::IntArrayRef({0, 3}));
        EXPECT_TRUE(torch::allclose(model->l->weight, trained_plainly(), 1e-5, 1e-7));
      }
    });
    in_world(size, [&](std::shared_ptr<World> world) {
      Zero model;
      DataParallel parallel(model, {}, world);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        parallel.backward(loss(parallel.forward(x)));
        optimizer.step();
      }
      EXPECT_TRUE(torch::allclose(model->l->weight, trained_plainly(), 1e-5, 1e-7));
    });
  }
}

struct MaskImpl : nn::Module {
  nn::Linear l{nullptr};
  Tensor mask;
  explicit MaskImpl(int rank) {
    torch::manual_seed(1);
    l = register_module("l", nn::Linear(3, 3));
    const Tensor row = torch::tensor({1.0F, 2.0F, 3.0F}) + static_cast<float>(rank);
    mask = register_buffer("mask", row.unsqueeze(1).expand({2, 3, 4}));
  }
  Tensor forward(const Tensor& x) { return (l->forward(x) * mask.sum(2)).sum(); }
};
TORCH_MODULE(Mask);

TEST(ShapeCases, ExpandedBuffersAreRankZerosToo) {
  const auto check = [](const Mask& model) {
    EXPECT_EQ(model->mask.strides(), at::IntArrayRef({0, 1, 0}));
    const Tensor expected = torch::tensor({1.0F, 2.0F, 3.0F}).unsqueeze(1).expand({2, 3, 4});
    EXPECT_TRUE(torch::equal(model->mask, expected)) << model->mask;
  };
  for (const int size : {1, 2}) {
    in_every_mode(size, [&](std::shared_ptr<World> world, const EngineOptions& options) {
      Mask model(world->rank());
      Engine engine(model, Sgd({.lr = 0.1}), options, world);
      check(model);
      model->mask.select(0, 0).select(1, 0).add_(world->rank());  // each its own
      engine.backward(engine.forward(torch::ones({2, 3})));
      engine.step();
      check(model);
      engine.restore([](const StateView&) {});
      check(model);
    });
    in_world(size, [&](std::shared_ptr<World> world) {
      Mask model(world->rank());
      DataParallel parallel(model, {}, world);
      check(model);
      parallel.backward(parallel.forward(torch::ones({2, 3})));
      check(model);
    });
  }
}

struct ScaleImpl : nn::Module {
  Tensor scale;
  explicit ScaleImpl(int rank) {
    scale = register_parameter(
        "scale", torch::full({1, 3}, static_cast<float>(rank + 2)).expand({4, 3}).detach());
  }
  Tensor forward(const Tensor& x) { return (x * scale).sum(); }
};
TORCH_MODULE(Scale);

TEST(ShapeCases, AnExpandedParameterHasItsGradientInDataParallel) {
  for (const int size : {1, 2}) {
    in_world(size, [](std::shared_ptr<World> world) {
      Scale model(world->rank());
      DataParallel parallel(model, {}, world);
      EXPECT_TRUE(torch::equal(model->scale, torch::full({4, 3}, 2.0F)));
      parallel.backward(parallel.forward(torch::full({4, 3}, static_cast<float>(world->rank()))));
      // Of x * scale, averaged over x = 0, 1, ...
      EXPECT_TRUE(torch::equal(model->scale.grad(),
                               torch::full({4, 3}, (static_cast<float>(world->size()) - 1) / 2)));
    });
  }
}

// --- what messages say

struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x,
                        nn::Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer.get());
    return torch::tanh(layer->forward(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* layer = reinterpret_cast<nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    Tensor y;
    {
      const torch::AutoGradMode on(true);
      y = torch::tanh(layer->forward(x));
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), Tensor()};
  }
};

TEST(MessageCases, ALayerInTwoRecomputedSegmentsIsNamed) {
  in_world(1, [](std::shared_ptr<World> world) {
    nn::Linear a(6, 6), b(6, 6);
    nn::Sequential model(a, b);
    Engine engine(model, Sgd({.lr = 0.1}), {}, world);
    const auto loss = [&](const nn::Linear& second) {
      const Tensor x = input_of(0, 0).requires_grad_(true);
      return Recomputed::apply(Recomputed::apply(x, a), second).pow(2).sum();
    };
    engine.backward(loss(b));
    engine.step();
    const std::string message = message_of<ConfigError>([&] { engine.backward(loss(a)); });
    EXPECT_TRUE(contains(message, "parameter 0.")) << message;
    EXPECT_TRUE(contains(message, "recomputed")) << message;
    EXPECT_TRUE(contains(message, "one segment")) << message;
  });
}

TEST(MessageCases, AWriteAfterTheEngineEndedIsToldToUnwrap) {
  in_every_mode(1, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Net model;
    {
      Engine engine(model, Sgd({.lr = 0.1}), options, world);
      engine.backward(loss_of(engine.forward(input_of(0, 0))));
      engine.step();
    }
    const torch::NoGradGuard no_grad;
    for (const bool collective : {false, true}) {
      const std::string message = message_of<ConfigError>([&] {
        if (collective) {
          world->all_reduce(model->first->bias.data()).wait();
        } else {
          model->first->bias.zero_();
        }
      });
      EXPECT_TRUE(contains(message, "parameter first.bias")) << message;
      EXPECT_TRUE(contains(message, "engine.unwrap()")) << message;
      EXPECT_FALSE(contains(message, "gathered")) << message;
      EXPECT_EQ(contains(message, "parameter.set_data(parameter.detach().clone())"),
                options.placement != Placement::kCopied)
          << message;
    }
    if (options.placement != Placement::kCopied) {
      Tensor& parameter = model->first->bias;  // what the message says
      parameter.set_data(parameter.detach().clone());
      parameter.zero_();
      EXPECT_EQ(model->first->bias.abs().sum().item<float>(), 0);
    }
  });
}

TEST(MessageCases, AWriteToAModelBuiltInPartsIsToldSo) {
  in_world(2, [](std::shared_ptr<World> world) {
    const auto model =
        build_sharded(*world, [] { return std::make_shared<TiedImpl>(false, false); });
    const torch::NoGradGuard no_grad;
    for (const bool collective : {false, true}) {
      const std::string message = message_of<ConfigError>([&] {
        if (collective) {
          world->all_reduce(model->a->weight.data()).wait();
        } else {
          model->a->weight.zero_();
        }
      });
      EXPECT_TRUE(contains(message, "parameter a.weight")) << message;
      EXPECT_TRUE(contains(message, "build_sharded")) << message;
    }
    world->barrier().wait();
  });
}

}  // namespace
}  // namespace trireme::model_cases_test
