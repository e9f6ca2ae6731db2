// What people do with models and losses besides training them in the plain way: each case gives
// what LibTorch alone gives, or is refused by name.

#include <cmath>
#include <filesystem>
#include <limits>

#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/autocast.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/engine.h"
#include "trireme/parallel/sync_batch_norm.h"

namespace trireme::engine_cases_test {
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
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

// body(world, options) for every stage and placement.
void in_every_mode(int size,
                   const std::function<void(std::shared_ptr<World>, EngineOptions)>& body) {
  in_world(size, [&](std::shared_ptr<World> world) {
    for (const auto& [zero, placement] : kModes) {
      SCOPED_TRACE(detail::concat(
          "stage ", zero, placement == Placement::kCopied ? " copied" : "", ", ranks ", size));
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
  return (output - 0.5).pow(2).mean();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- float16

struct OneImpl : nn::Module {
  Tensor w;
  OneImpl() { w = register_parameter("w", torch::ones({4})); }
  Tensor forward(const Tensor& x) { return (w * x).sum().to(torch::kFloat); }
};
TORCH_MODULE(One);

// The gradient is 1, the scale a power of two: when it grows must not matter.
TEST(Float16, TheScaleMayGrowInAnyStep) {
  in_every_mode(2, [](std::shared_ptr<World> world, EngineOptions options) {
    for (const std::int64_t interval : {1, 2, 3, 1000000}) {
      One model;
      options.precision = Precision::kFloat16;
      options.loss_scale.initial = 4;
      options.loss_scale.growth_interval = interval;
      Engine engine(model, Sgd({.lr = 0.125}), options, world);
      for (int step = 1; step <= 6; ++step) {
        engine.backward(engine.forward(torch::ones({4}, torch::kHalf)));
        ASSERT_TRUE(engine.step());
        EXPECT_EQ(model->w[0].item<float>(), 1 - 0.125F * static_cast<float>(step))
            << "step " << step << ", the scale grows every " << interval;
      }
      EXPECT_EQ(engine.loss_scale(), 4 * std::exp2(6 / interval));
    }
  });
}

TEST(Float16, ALossThatIsNeverFiniteIsNamed) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    EngineOptions options;
    options.precision = Precision::kFloat16;
    options.loss_scale.initial = 16;
    Engine engine(model, Sgd({.lr = 0.1}), options, world);
    const auto attempt = [&](int step) {
      const float factor = world->rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
      const Tensor out = engine.forward(input_of(step, 0).to(torch::kHalf)).to(torch::kFloat);
      engine.backward(loss_of(out) * factor);
      engine.step();
    };
    for (int step = 0; step < 4; ++step) {
      attempt(step);  // 16, 8, 4, 2
    }
    EXPECT_EQ(engine.skipped_steps(), 4);
    const std::string message = message_of<GradientError>([&] { attempt(4); });
    for (const char* part : {"on rank 1", "at its least, 1", "after 4 skipped"}) {
      EXPECT_TRUE(contains(message, part)) << message;
    }
    // Nothing is half done: the same engine goes on.
    engine.backward(loss_of(engine.forward(input_of(5, 0).to(torch::kHalf)).to(torch::kFloat)));
    EXPECT_TRUE(engine.step());
    EXPECT_EQ(engine.steps(), 1);
  });
}

TEST(Float16, AutocastNeedsAScale) {
  in_world(1, [](std::shared_ptr<World> world) {
    const auto loss = [](Engine<NetImpl>& engine, at::ScalarType type) {
      const Autocast scope(type);
      return loss_of(engine.forward(input_of(0, 0)).to(torch::kFloat));
    };
    Net bare;
    Engine without(bare, Sgd({.lr = 0.1}), {}, world);
    EXPECT_TRUE(
        contains(message_of<ConfigError>([&] { without.backward(loss(without, at::kHalf)); }),
                 "scale_loss"));
    without.backward(loss(without, at::kBFloat16));
    EXPECT_TRUE(without.step());
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), {.scale_loss = true}, world);
    EXPECT_EQ(engine.loss_scale(), 65536);
    engine.backward(loss(engine, at::kHalf));
    EXPECT_TRUE(engine.step());
    // As float32 alone, within what float16 can tell apart.
    Net plain;
    loss_of(plain->forward(input_of(0, 0))).backward();
    const Tensor expected = plain->first->weight - 0.1 * plain->first->weight.grad();
    EXPECT_TRUE(torch::allclose(model->first->weight, expected, 1e-2, 1e-3));
    EXPECT_FALSE(torch::equal(model->first->weight, plain->first->weight));
  });
}

// --- memory of parameters

struct HalvesImpl : nn::Module {
  Tensor weight, upper, lower;
  explicit HalvesImpl(bool keeps) {
    weight = register_parameter("weight", torch::randn({8, 6}));
    if (keeps) {
      upper = weight.narrow(0, 0, 4);
      lower = weight.narrow(0, 4, 4);
    }
  }
  Tensor forward(const Tensor& x) {
    return torch::tanh(x.matmul(weight.narrow(0, 0, 4).t())).matmul(weight.narrow(0, 4, 4));
  }
};
TORCH_MODULE(Halves);

// The engine would move the parameter, and the view would never see an update.
TEST(Memory, ViewsThatAModuleKeepsAreRefused) {
  in_every_mode(1, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Halves keeps(true);
    const std::string message =
        message_of<ConfigError>([&] { Engine(keeps, Sgd({.lr = 0.1}), options, world); });
    EXPECT_TRUE(contains(message, "parameter weight")) << message;
    EXPECT_TRUE(contains(message, "in forward()")) << message;
    Halves makes(false);
    const Tensor same = makes->weight;  // another name for the tensor is no view
    EXPECT_NO_THROW(Engine(makes, Sgd({.lr = 0.1}), options, world).unwrap());
  });
}

TEST(Memory, ASavedModelHasItsWeightsOrIsRefused) {
  namespace fs = std::filesystem;
  in_every_mode(2, [](std::shared_ptr<World> world, const EngineOptions& options) {
    const fs::path file =
        fs::temp_directory_path() / detail::concat("trireme-saved-", getpid(), ".pt");
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), options, world);
    engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    engine.step();
    Tensor weight;
    {
      const auto scope = engine.gathered();  // a plain read would leave them whole for a while
      weight = model->first->weight.clone();
    }
    const auto check = [&] {
      Net loaded;
      torch::load(loaded, file.string());
      EXPECT_TRUE(torch::equal(loaded->first->weight, weight));
      // Its parameters may lie side by side on one storage: a new engine takes them.
      Engine again(loaded, Sgd({.lr = 0.1}), options, world);
      again.backward(loss_of(again.forward(input_of(0, world->rank()))));
      EXPECT_TRUE(again.step());
    };
    if (options.placement == Placement::kCopied) {
      const std::string message =
          message_of<std::exception>([&] { torch::save(model, file.string()); });
      EXPECT_TRUE(contains(message, "first.weight") && contains(message, "gathered()")) << message;
    } else {
      torch::save(model, file.string());
      check();
    }
    {
      const auto scope = engine.gathered();
      torch::save(model, file.string());
    }
    check();
    fs::remove(file);
  });
}

TEST(Memory, AnEngineMayEndInTheMiddleOfAStep) {
  in_every_mode(2, [](std::shared_ptr<World> world, EngineOptions options) {
    options.accumulate = 2;
    for (const std::size_t bucket_bytes : {std::size_t{64}, std::size_t{1} << 20}) {
      options.bucket_bytes = bucket_bytes;
      {
        Net model;
        Engine engine(model, Sgd({.lr = 0.1}), options, world);
        if (world->rank() == 1) {
          usleep(20'000);  // the other one's operations are queued
        }
        engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
        EXPECT_FALSE(engine.step());
      }
      world->barrier().wait();
      Net model;
      Engine engine(model, Sgd({.lr = 0.1}), options, world);
      for (int k = 0; k < 2; ++k) {
        engine.backward(loss_of(engine.forward(input_of(k, world->rank()))));
        EXPECT_EQ(engine.step(), k == 1);
      }
    }
  });
}

// --- gradients

// A gradient that is to be read with the other sign (the imaginary part of a conjugate).
struct PhaseImpl : nn::Module {
  Tensor imaginary;
  PhaseImpl() { imaginary = register_parameter("imaginary", torch::full({}, 2.0F)); }
  Tensor forward() {
    return torch::abs(torch::conj(torch::complex(torch::full({}, 1.0F), imaginary)));
  }
};
TORCH_MODULE(Phase);

TEST(Gradients, KeepTheirSign) {
  in_every_mode(1, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Phase plain;
    plain->forward().backward();
    const float expected = 2 - plain->imaginary.grad().item<float>();
    Phase model;
    Engine engine(model, Sgd({.lr = 1}), options, world);
    engine.backward(engine.forward());
    engine.step();
    EXPECT_EQ(model->imaginary.item<float>(), expected);
    EXPECT_NEAR(expected, 2 - 2 / std::sqrt(5.0), 1e-6);
  });
}

// The discriminator's gradients of the generator's loss are nobody's.
TEST(Gradients, OfAnotherEnginesModelAreNotItsOwn) {
  const auto noise = [](int round) { return input_of(round, 7).narrow(1, 0, 2); };
  const auto train_plainly = [&](nn::Linear& generator, Net& discriminator) {
    torch::optim::SGD g(generator->parameters(), 0.1);
    torch::optim::SGD d(discriminator->parameters(), 0.1);
    for (int round = 0; round < 3; ++round) {
      d.zero_grad();
      loss_of(discriminator->forward(generator->forward(noise(round)).detach())).backward();
      d.step();
      g.zero_grad();
      loss_of(discriminator->forward(generator->forward(noise(round)))).backward();
      g.step();
    }
  };
  const auto make_generator = [] {
    torch::manual_seed(8);
    return nn::Linear(2, 6);
  };
  for (const int size : {1, 2}) {
    in_every_mode(size, [&](std::shared_ptr<World> world, const EngineOptions& options) {
      nn::Linear expected = make_generator();
      Net expected_discriminator;
      train_plainly(expected, expected_discriminator);
      nn::Linear generator = make_generator();
      Net discriminator;
      Engine g(generator, Sgd({.lr = 0.1}), options, world);
      Engine d(discriminator, Sgd({.lr = 0.1}), options, world);
      for (int round = 0; round < 3; ++round) {
        d.backward(loss_of(d.forward(g.forward(noise(round)).detach())));
        EXPECT_TRUE(d.step());
        g.backward(loss_of(d.forward(g.forward(noise(round)))));
        EXPECT_TRUE(g.step());
      }
      EXPECT_TRUE(torch::allclose(generator->weight, expected->weight, 1e-5, 1e-7));
      EXPECT_TRUE(torch::allclose(
          discriminator->first->weight, expected_discriminator->first->weight, 1e-5, 1e-7));
      // Without any engine's backward it is a mistake.
      EXPECT_TRUE(contains(message_of<ConfigError>(
                               [&] { loss_of(discriminator->forward(input_of(0, 0))).backward(); }),
                           "engine.backward(loss)"));
    });
  }
}

struct HeadsImpl : nn::Module {
  std::vector<nn::Linear> trunk;
  nn::Linear a{nullptr}, b{nullptr};
  HeadsImpl() {
    for (int i = 0; i < 12; ++i) {
      trunk.push_back(register_module("layer" + std::to_string(i), nn::Linear(128, 128)));
    }
    a = register_module("a", nn::Linear(128, 128));
    b = register_module("b", nn::Linear(128, 128));
  }
  Tensor forward(Tensor x, bool first) {
    for (auto& layer : trunk) {
      x = torch::tanh(layer->forward(x));
    }
    return (first ? a : b)->forward(x).pow(2).mean();
  }
};
TORCH_MODULE(Heads);

// A look at the graph tells which gradients cannot come, views in it or not: no bucket waits for
// them, and a few of them do.
TEST(Gradients, OfAHeadThatIsNotUsedAreNotWaitedFor) {
  in_world(2, [](std::shared_ptr<World> world) {
    Heads model;
    EngineOptions options{.zero = 2};
    options.bucket_bytes = 64 << 10;  // a layer
    options.bucket_count = 4;
    Engine engine(model, Sgd({.lr = 0.01}), options, world);
    for (int step = 0; step < 6; ++step) {
      engine.backward(engine.forward(torch::ones({4, 128}), step % 2 == 0));
      engine.step();
    }
    const auto peak = engine.memory().peak[static_cast<std::size_t>(MemoryCategory::kBuckets)];
    EXPECT_LE(peak, 4 * (68 << 10)) << "of 14 layers";
  });
}

TEST(Gradients, OfAPartOfAStepCanBeUsed) {
  for (const SumOrder order : {SumOrder::kChained, SumOrder::kLocalFirst}) {
    in_every_mode(2, [&](std::shared_ptr<World> world, EngineOptions options) {
      options.accumulate = 2;
      options.sum_order = order;
      Net plain;
      torch::optim::SGD optimizer(plain->parameters(), 0.1);
      Net model;
      Engine engine(model, Sgd({.lr = 0.1}), options, world);
      EXPECT_FALSE(engine.flush()) << "there is nothing yet";
      for (int batch = 0; batch < 3; ++batch) {
        engine.backward(loss_of(engine.forward(input_of(batch, world->rank()))));
        EXPECT_EQ(engine.step(), batch == 1);
      }
      EXPECT_TRUE(engine.flush()) << "one of two";
      EXPECT_EQ(engine.steps(), 2);
      EXPECT_FALSE(engine.flush());
      for (const std::vector<int>& step : {std::vector<int>{0, 1}, std::vector<int>{2}}) {
        optimizer.zero_grad();
        for (const int batch : step) {
          for (const int rank : {0, 1}) {
            (loss_of(plain->forward(input_of(batch, rank))) /
             (2.0 * static_cast<double>(step.size())))
                .backward();
          }
        }
        optimizer.step();
      }
      EXPECT_TRUE(torch::allclose(model->first->weight, plain->first->weight, 1e-5, 1e-7));
      engine.unwrap();  // between steps
    });
  }
}

// --- averages and norms

struct TwoImpl : nn::Module {
  Tensor a, b;
  TwoImpl() {
    a = register_parameter("a", torch::zeros({1}));
    b = register_parameter("b", torch::zeros({1}));
  }
  Tensor forward(bool both) { return both ? -(a + b).sum() : -a.sum(); }
};
TORCH_MODULE(Two);

// `b` is 1 from the first step on, in which alone it is used: its average comes closer by half.
TEST(Averages, FollowWeightsThatAreNotUsed) {
  in_every_mode(2, [](std::shared_ptr<World> world, EngineOptions options) {
    options.ema_decay = 0.5;
    Two model;
    Engine engine(model, Sgd({.lr = 1}), options, world);
    for (int step = 1; step <= 10; ++step) {
      engine.backward(engine.forward(step == 1));
      engine.step();
      EXPECT_EQ(engine.average("b").item<float>(), 1 - std::exp2(-static_cast<float>(step)));
    }
    EXPECT_EQ(model->b.item<float>(), 1);
  });
}

TEST(Norms, AreExactInHalfPrecision) {
  in_world(1, [](std::shared_ptr<World> world) {
    const auto run = [&](auto norm) {
      EngineOptions options;
      options.precision = Precision::kBFloat16;
      torch::manual_seed(4);
      auto model = std::make_shared<nn::SequentialImpl>(nn::Linear(6, 5), norm, nn::Linear(5, 2));
      EngineBase engine(model, Sgd({.lr = 0.1}), options, world);
      const Tensor x = input_of(0, 0).to(torch::kBFloat16);
      engine.backward(model->forward(x).to(torch::kFloat).pow(2).mean());
      engine.step();
      model->eval();
      const torch::NoGradGuard no_grad;
      return model->forward(x).to(torch::kFloat);
    };
    const Tensor expected = run(nn::BatchNorm1d(5));
    const Tensor found = run(SyncBatchNorm(nn::BatchNormOptions(5), world));
    EXPECT_TRUE(torch::allclose(found, expected, 5e-2, 2e-2)) << found << expected;
  });
}

// --- what ranks and users may not do

TEST(Settings, ThatDifferBetweenRanksAreNamed) {
  in_every_mode(2, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), options, world);
    const Tensor before = model->first->weight.clone();
    engine.set_learning_rate(world->rank() == 0 ? 0.5 : 0.25);
    engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    const std::string message = message_of<ConfigError>([&] { engine.step(); });
    EXPECT_TRUE(contains(message, "rank 0 has 0.5, rank 1 has 0.25")) << message;
    EXPECT_TRUE(torch::equal(model->first->weight, before));
    engine.set_learning_rate(0.5);
    engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    EXPECT_TRUE(engine.step());
    for (const double rate : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      EXPECT_THROW(engine.set_learning_rate(rate), ConfigError);
    }
  });
}

TEST(Settings, OfThreadsMustBeTheSameOnAllRanks) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    at::set_num_threads(world->rank() == 0 ? 1 : 2);
    const std::string message =
        message_of<ConfigError>([&] { Engine(model, Sgd({.lr = 0.1}), {}, world); });
    EXPECT_TRUE(contains(message, "1 thread") && contains(message, "rank 1 has 2 threads"))
        << message;
    at::set_num_threads(1);
    const std::string rates = message_of<ConfigError>(
        [&] { Engine(model, AdamW({.lr = world->rank() == 0 ? 0.1 : 0.2}), {}, world); });
    EXPECT_TRUE(contains(rates, "lr 0.1") && contains(rates, "lr 0.2")) << rates;
    const std::string stages = message_of<ConfigError>(
        [&] { Engine(model, Sgd({.lr = 0.1}), {.zero = world->rank()}, world); });
    EXPECT_TRUE(contains(stages, "zero 0") && contains(stages, "zero 1")) << stages;
    EXPECT_NO_THROW(Engine(model, Sgd({.lr = 0.1}), {}, world));
  });
}

TEST(Settings, AParameterThatComesLaterIsNotForgotten) {
  in_world(1, [](std::shared_ptr<World> world) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), {}, world);
    model->register_parameter("late", torch::zeros({2}));
    EXPECT_TRUE(contains(
        message_of<ConfigError>([&] { engine.backward(loss_of(engine.forward(input_of(0, 0)))); }),
        "had 4 parameters when the engine was built and has 5"));
  });
}

TEST(Settings, DataParallelNoticesALayerThatIsUnfrozen) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    for (auto& parameter : model->first->parameters()) {
      parameter.requires_grad_(false);
    }
    DataParallel parallel(model, {}, world);
    parallel.backward(loss_of(parallel.forward(input_of(0, world->rank()))));
    model->zero_grad();
    for (auto& parameter : model->first->parameters()) {
      parameter.requires_grad_(true);
    }
    const std::string message = message_of<ConfigError>(
        [&] { parallel.backward(loss_of(parallel.forward(input_of(0, world->rank())))); });
    EXPECT_TRUE(contains(message, "first.weight was unfrozen")) << message;
  });
}

}  // namespace
}  // namespace trireme::engine_cases_test
