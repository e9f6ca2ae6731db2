// Ranks that were given different things, each of which would change the result: all of them say so
// in the same step, with both values, and have changed nothing.

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/optim/parameter_groups.h"
#include "trireme/parallel/engine.h"

namespace trireme::engine_agreement_test {
namespace {

namespace nn = torch::nn;
using testing::fork_ranks;
using testing::message_of;
using torch::Tensor;

constexpr std::pair<int, Placement> kModes[] = {
    {0, Placement::kAutomatic}, {1, Placement::kAutomatic}, {3, Placement::kCopied}};

// body(world, options) where everything is whole, where updates are divided, and where all is.
void in_modes(int size,
              const std::function<void(std::shared_ptr<World>, const EngineOptions&)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const std::shared_ptr<World> world = init(testing::options_for(job, rank, size));
    for (const auto& [zero, placement] : kModes) {
      SCOPED_TRACE(detail::concat("stage ", zero));
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

void backward(Engine<NetImpl>& engine, int step) {
  engine.backward(loss_of(engine.forward(input_of(step, engine.ranks().rank()))));
}

// --- learning rates

TEST(Agreement, OnWhatTheScheduleGives) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    // As where each rank counts the steps of its own share of the data.
    options.schedule = Schedule::linear(world->rank() == 0 ? 4 : 2);
    Net model;
    Engine engine(model, Sgd({.lr = 0.5}), options, world);
    backward(engine, 0);
    EXPECT_TRUE(engine.step()) << "both begin with 1";
    const Tensor before = model->first->weight.clone();
    backward(engine, 1);
    const std::string message = message_of<ConfigError>([&] { engine.step(); });
    EXPECT_TRUE(contains(message, "rank 0 has 0.375, rank 1 has 0.25")) << message;
    EXPECT_TRUE(contains(message, "schedule")) << message;
    EXPECT_TRUE(torch::equal(model->first->weight, before));
    EXPECT_EQ(engine.steps(), 1);
  });
}

// A rank that has joined takes the others' base, but its schedule is its own.
TEST(Agreement, OnWhatTheScheduleOfAJoinedRankGives) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    options.schedule = Schedule::linear(world->rank() == 0 ? 4 : 2);
    Net model;
    Engine engine(model, Sgd({.lr = 0.5}), options, world);
    if (world->rank() == 0) {
      engine.set_learning_rate(0.25);
      backward(engine, 0);
      EXPECT_TRUE(engine.step());
      backward(engine, 1);
    }
    const std::string message = message_of<ConfigError>([&] {
      if (world->rank() == 0) {
        engine.step();
      } else {
        engine.join();
      }
    });
    EXPECT_TRUE(contains(message, "rank 0 has 0.1875, rank 1 has 0.125")) << message;
    EXPECT_EQ(engine.steps(), 1);
  });
}

TEST(Agreement, OnARateThatIsSetTooLateIsNotPossible) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    options.micro_batches = 3;  // two on rank 0
    Net model;
    Engine engine(model, Sgd({.lr = 0.5}), options, world);
    for (int step = 0; step < 2; ++step) {
      if (world->rank() == 0) {
        backward(engine, 0);
        EXPECT_FALSE(engine.step());
      }
      engine.set_learning_rate(0.25);  // before the last one
      backward(engine, 1);
      const std::string message =
          message_of<ConfigError>([&] { engine.set_learning_rate(world->rank() == 0 ? 1 : 2); });
      EXPECT_TRUE(contains(message, "before that backward()")) << message;
      EXPECT_EQ(engine.learning_rate(), 0.25);
      if (step == 1) {
        EXPECT_TRUE(engine.step());
      } else {
        // Rank 0 had another rate when its first micro-batch ended.
        EXPECT_THROW(engine.step(), ConfigError);
      }
      engine.set_learning_rate(0.25);
    }
    EXPECT_EQ(engine.steps(), 1);
    // Without a micro-batch of one's own: once the sums are asked for.
    engine.deal({1, 0});
    if (world->rank() == 0) {
      backward(engine, 2);
    }
    (void)engine.grad("first.bias");
    EXPECT_THROW(engine.set_learning_rate(1), ConfigError);
    EXPECT_TRUE(engine.step());
  });
}

// --- parameter groups

TEST(Agreement, OnTheGroupsOfParameters) {
  in_modes(2, [](std::shared_ptr<World> world, const EngineOptions& options) {
    const bool first = world->rank() == 0;
    const ParameterGroup kDifferent[] = {
        {named({first ? "first.*" : "second.*"}), {.lr = 0.25}},
        {biases_and_norms(), {.weight_decay = first ? 0 : 0.5}},
        {[first](const ParameterInfo& p) { return first && p.name == "second.bias"; }, {.lr = 1}}};
    for (const ParameterGroup& group : kDifferent) {
      Net model;
      const std::string message = message_of<ConfigError>([&] {
        Engine engine(model, ParameterGroups(Sgd({.lr = 0.5}), {group}), options, world);
      });
      EXPECT_TRUE(contains(message, "differs between ranks")) << message;
      EXPECT_TRUE(contains(message, "rank 0") && contains(message, "rank 1")) << message;
    }
  });
}

TEST(Agreement, OnGroupsThatHaveNoParameterIsRefused) {
  in_modes(2, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Net model;
    const std::string message = message_of<ConfigError>([&] {
      Engine engine(
          model, ParameterGroups(Sgd(), {{named({"frist.*"}), {.lr = 1}}}), options, world);
    });
    EXPECT_TRUE(contains(message, "frist.*") && contains(message, "first.weight")) << message;
    Engine works(model, Sgd({.lr = 0.5}), options, world);
    backward(works, 0);
    EXPECT_TRUE(works.step()) << "the model was given back";
  });
}

// By set_learning_rate and by the schedule.
TEST(Agreement, OfGroupsKeepTheirRatesInProportion) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    options.schedule = Schedule::step(1, 0.5);
    options.micro_batches = 1;
    Net model;
    Engine engine(model,
                  ParameterGroups(Sgd({.lr = 0.5}), {{named({"second.*"}), {.lr = 0.125}}}),
                  options,
                  world);
    engine.set_learning_rate(1);
    double rate = 1;
    for (int step = 0; step < 3; ++step, rate /= 2) {
      const Tensor first = model->first->weight.clone();
      const Tensor second = model->second->weight.clone();
      if (world->rank() == 0) {
        backward(engine, step);
      }
      const Tensor of_first = engine.grad("first.weight");
      const Tensor of_second = engine.grad("second.weight");
      EXPECT_TRUE(engine.step());
      EXPECT_TRUE(torch::equal(model->first->weight, first - rate * of_first));
      EXPECT_TRUE(torch::equal(model->second->weight, second - rate / 4 * of_second));
    }
  });
}

TEST(Agreement, OnARateThatIsNoRateIsRefused) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    for (const double last : {-1.0, std::nan("")}) {
      options.schedule = Schedule::linear(2, last);
      Net model;
      Engine engine(model, Sgd({.lr = 0.5}), options, world);
      Tensor before = model->first->weight.clone();
      std::string message;
      for (int step = 0; step < 3 && message.empty(); ++step) {
        backward(engine, step);
        try {
          engine.step();
          before = model->first->weight.clone();
        } catch (const ConfigError& error) {
          message = error.what();
        }
      }
      EXPECT_TRUE(contains(message, "of 0 or more") && contains(message, "schedule")) << message;
      EXPECT_TRUE(torch::equal(model->first->weight, before));
      EXPECT_THROW(engine.learning_rate(), ConfigError);
    }
  });
}

// --- options

TEST(Agreement, OnEveryOptionThatChangesTheResult) {
  const std::pair<const char*, std::function<void(EngineOptions&)>> kOthers[] = {
      {"loss_scale.initial 1024", [](EngineOptions& o) { o.loss_scale.initial = 1024; }},
      {"growth 4", [](EngineOptions& o) { o.loss_scale.growth = 4; }},
      {"backoff 0.25", [](EngineOptions& o) { o.loss_scale.backoff = 0.25; }},
      {"growth_interval 7", [](EngineOptions& o) { o.loss_scale.growth_interval = 7; }},
      {"least 2", [](EngineOptions& o) { o.loss_scale.least = 2; }},
      {"most 131072", [](EngineOptions& o) { o.loss_scale.most = 131072; }},
      {"units first", [](EngineOptions& o) { o.units = {"first"}; }},
      {"shares 3, 1",
       [](EngineOptions& o) {
         o.shares = {3, 1};
       }},
      {"bucket_count 1", [](EngineOptions& o) { o.bucket_count = 1; }},
  };
  in_modes(2, [&](std::shared_ptr<World> world, EngineOptions options) {
    for (const auto& [what, change] : kOthers) {
      EngineOptions mine = options;
      mine.scale_loss = true;
      if (world->rank() == 1) {
        change(mine);
      }
      Net model;
      const std::string message =
          message_of<ConfigError>([&] { Engine(model, Sgd({.lr = 0.1}), mine, world); });
      EXPECT_TRUE(contains(message, "where rank 1 has") && contains(message, what)) << message;
    }
  });
}

// --- calls

TEST(Agreement, OnWhatIsDealt) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    options.micro_batches = 4;
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), options, world);
    using Deal = std::vector<std::int64_t>;
    for (const auto& [mine, other] :
         {std::pair{Deal{3, 1}, Deal{1, 3}}, {Deal{3, 1}, Deal{2, 2}}, {Deal{3, 1}, Deal{4}}}) {
      const std::string message =
          message_of<ConfigError>([&] { engine.deal(world->rank() == 0 ? mine : other); });
      EXPECT_TRUE(contains(message, "rank 0 has 3, 1 where rank 1 has")) << message;
      EXPECT_EQ(engine.local_micro_batches(), 2) << "as before";
    }
    engine.deal({3, 1});
    EXPECT_EQ(engine.local_micro_batches(), world->rank() == 0 ? 3 : 1);
  });
}

// Three ranks, one of which has joined: it has no bound of its own.
TEST(Agreement, OnTheBoundOfClipping) {
  in_modes(3, [](std::shared_ptr<World> world, EngineOptions options) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.5}), options, world);
    const Tensor before = model->first->weight.clone();
    if (world->rank() == 1) {
      const std::string message = message_of<ConfigError>([&] { engine.join(); });
      EXPECT_TRUE(contains(message, "the bound differs")) << message;
      EXPECT_EQ(engine.steps(), 0);
      engine.join();
    } else {
      backward(engine, 0);
      const std::string message = message_of<ConfigError>(
          [&] { engine.clip_grad_norm(world->rank() == 0 ? 1.0 : 0.0625); });
      EXPECT_TRUE(contains(message, "the smallest is 0.0625 and the largest 1:")) << message;
      EXPECT_TRUE(torch::equal(model->first->weight, before));
      // The step can be tried again.
      backward(engine, 0);
      const double norm = engine.clip_grad_norm(0.0625);
      EXPECT_GT(norm, 0.0625);
      EXPECT_TRUE(engine.step());
      EXPECT_EQ(engine.gradient_norm(), norm);
      engine.join();
    }
    // The clipped gradient is as long as the bound, the step half of it.
    double moved = 0;
    const Net fresh;
    for (std::size_t i = 0; i < 4; ++i) {
      moved += (model->parameters()[i] - fresh->parameters()[i])
                   .to(torch::kDouble)
                   .pow(2)
                   .sum()
                   .item<double>();
    }
    EXPECT_NEAR(std::sqrt(moved), 0.5 * 0.0625, 1e-6);
    EXPECT_EQ(engine.steps(), 1);
  });
}

TEST(Agreement, OnWhatIsRestored) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    Net model;
    Engine engine(model, Adam({.lr = 0.01}), options, world);
    const std::string text = R"({"optimizer":"adam","steps":9,"base_rate":0.5,"updates":{}})";
    const std::string other = R"({"optimizer":"adam","steps":8,"base_rate":0.5,"updates":{}})";
    bool filled = false;
    const auto fill = [&](const StateView&) { filled = true; };
    for (const std::string& of_rank_1 : {std::string(), other}) {
      const std::string message = message_of<ConfigError>(
          [&] { engine.restore(fill, world->rank() == 0 ? text : of_rank_1); });
      EXPECT_TRUE(contains(message, "progress") && contains(message, "rank 1 has")) << message;
    }
    EXPECT_FALSE(filled);
    EXPECT_EQ(engine.steps(), 0);
    EXPECT_EQ(engine.learning_rate(), 0.01);
    engine.restore(fill, text);
    EXPECT_EQ(engine.steps(), 9);
    EXPECT_EQ(engine.learning_rate(), 0.5);
  });
}

// --- steps without data

// The rank that has the only micro-batch of every step has no more, the other goes on.
TEST(Agreement, OnThatThereIsNoDataMovesNothing) {
  in_modes(2, [](std::shared_ptr<World> world, EngineOptions options) {
    options.micro_batches = 1;
    options.ema_decay = 0.5;
    options.schedule = Schedule::linear(4);
    Net model;
    Engine engine(model, Sgd({.lr = 0.5, .momentum = 0.5}), options, world);
    Tensor after;
    if (world->rank() == 0) {
      backward(engine, 0);
      EXPECT_TRUE(engine.step());
      after = model->first->weight.clone();
    } else {
      EXPECT_TRUE(engine.step());
      after = model->first->weight.clone();
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(engine.clip_grad_norm(1), 0);
        EXPECT_FALSE(engine.step());
      }
    }
    engine.join();
    EXPECT_EQ(engine.steps(), 1);
    EXPECT_EQ(engine.learning_rate(), 0.375);
    EXPECT_TRUE(torch::equal(model->first->weight, after));
  });
}

}  // namespace
}  // namespace trireme::engine_agreement_test
