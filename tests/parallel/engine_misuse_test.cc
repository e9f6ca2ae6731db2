// What an engine is not made for: it says so and leaves everything usable, or does what LibTorch
// does.

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/autocast.h"
#include "trireme/parallel/engine.h"

namespace trireme {
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

// body(world, options) for every stage and placement, on one rank and on two.
void in_every_mode(const std::function<void(std::shared_ptr<World>, const EngineOptions&)>& body) {
  for (const int size : {1, 2}) {
    fork_ranks(size, [&, job = testing::unique_job()](int rank) {
      at::set_num_threads(1);
      const std::shared_ptr<World> world = init(testing::options_for(job, rank, size));
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

// --- models

TEST(Misuse, AModuleThatWasReplacedIsNamed) {
  in_every_mode([](std::shared_ptr<World> world, const EngineOptions& options) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.5}), options, world);
    const auto backward = [&] {
      engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    };
    backward();
    engine.step();
    const nn::Linear before = model->second;
    model->second = model->replace_module("second", nn::Linear(10, 2));  // a head for another task
    const std::string message = message_of<ConfigError>(backward);
    EXPECT_TRUE(contains(message, "second.weight") && contains(message, "unwrap")) << message;
    model->second = model->replace_module("second", before);
    backward();
    EXPECT_TRUE(engine.step());
    // Modules may be registered in another order: nothing is new.
    const auto first = model->first.ptr();
    model->unregister_module("first");
    model->register_module("first", first);
    backward();
    EXPECT_TRUE(engine.step());
    EXPECT_EQ(engine.steps(), 3);
  });
}

// --- gradients

// One parameter's gradient is infinite or not a number: the others may not go unbounded.
TEST(Misuse, OfCheckGradientsClipsAsTorchDoes) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    options.check_gradients = false;
    for (const float bad :
         {1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const bool option : {false, true}) {
        SCOPED_TRACE(detail::concat("gradient ", bad, option ? ", option" : ", call"));
        const auto loss = [&](NetImpl& model, int rank) {
          return 1000 * loss_of(model.forward(input_of(0, rank))) + model.second->bias.sum() * bad;
        };
        Net plain;
        torch::optim::SGD optimizer(plain->parameters(), 1);
        Tensor sum = loss(*plain, 0);
        for (int rank = 1; rank < world->size(); ++rank) {
          sum = sum + loss(*plain, rank);
        }
        (sum / world->size()).backward();
        const double expected = nn::utils::clip_grad_norm_(plain->parameters(), 1e-3);
        optimizer.step();

        Net model;
        options.clip_norm = option ? 1e-3 : 0;
        Engine engine(model, Sgd({.lr = 1}), options, world);
        engine.backward(loss(*model, world->rank()));
        if (!option) {
          engine.clip_grad_norm(1e-3);
        }
        EXPECT_TRUE(engine.step());
        EXPECT_EQ(std::isnan(engine.gradient_norm()), std::isnan(expected));
        EXPECT_EQ(std::isinf(engine.gradient_norm()), std::isinf(expected));
        for (std::size_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(torch::allclose(
              model->parameters()[i], plain->parameters()[i], 1e-5, 1e-7, /*equal_nan=*/true))
              << i << model->parameters()[i] << plain->parameters()[i];
        }
      }
    }
  });
}

// A hook that halves: called twice it would quarter.
TEST(Misuse, OfARoundThatIsMissingDoesNotCallTheHookAgain) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    std::vector<Tensor> results;
    std::vector<int> calls;
    for (const std::int64_t rounds : {2, 5}) {
      calls.push_back(0);
      options.accumulate = rounds;
      options.gradient_hook = [&](const GradientBucket& bucket) {
        ++calls.back();
        Tensor half = bucket.values * 0.5;
        bucket.ranks.all_reduce(half).wait();
        return half;
      };
      Net model;
      Engine engine(model, Sgd({.lr = 0.5}), options, world);
      for (int batch = 0; batch < 2; ++batch) {
        engine.backward(loss_of(engine.forward(input_of(batch, world->rank()))));
        engine.step();
      }
      if (rounds == 5) {
        EXPECT_TRUE(engine.flush());
      }
      results.push_back(model->first->weight.clone());
    }
    EXPECT_TRUE(torch::equal(results[0], results[1]));
    if (world->size() == 1) {
      EXPECT_EQ(calls[0], calls[1]);
    }
  });
}

TEST(Misuse, OfHalfPrecisionIsNotWhatAnEvaluationDoes) {
  in_every_mode([](std::shared_ptr<World> world, const EngineOptions& options) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), options, world);
    {
      const torch::NoGradGuard no_grad;
      const Autocast scope(at::kHalf);
      (void)engine.forward(input_of(0, 0));
    }
    engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    EXPECT_TRUE(engine.step());
    // Where there is a backward, an evaluation after it changes nothing.
    const Tensor loss = [&] {
      const Autocast scope(at::kHalf);
      return loss_of(engine.forward(input_of(0, world->rank())));
    }();
    {
      const torch::NoGradGuard no_grad;
      const Autocast scope(at::kHalf);
      (void)engine.forward(input_of(0, 0));
    }
    EXPECT_TRUE(
        contains(message_of<ConfigError>([&] { engine.backward(loss); }), "Autocast(at::kHalf)"));
  });
}

// --- optimizers

// A rule of the user's.
class Rule : public Optimizer {
 public:
  using Update = std::function<void(const ParameterSlice&, const GradientTransform&, double)>;
  Rule(int states, std::vector<std::string> names, Update update)
      : states_(states), names_(std::move(names)), update_(std::move(update)) {}
  std::string name() const override { return "mine"; }
  int state_count() const override { return states_; }
  std::vector<std::string> state_names() const override { return names_; }
  double learning_rate() const override { return std::exp2(-10); }
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double rate) const override {
    update_(slice, transform, rate);
  }
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Rule>(*this); }

 private:
  int states_;
  std::vector<std::string> names_;
  Update update_;
};

// Each state sums the one before it up, and the last one is the step: with gradients of 1 it is
// 1, 5, 15, 35, ..., all exact.
TEST(Misuse, OfStatesEndsAtFour) {
  in_every_mode([](std::shared_ptr<World> world, const EngineOptions& options) {
    const Rule::Update chain =
        [](const ParameterSlice& slice, const GradientTransform& transform, double rate) {
          ASSERT_EQ(slice.low, nullptr) << "of float32";
          for (std::int64_t i = 0; i < slice.numel; ++i) {
            float value = static_cast<const float*>(slice.gradient)[i] /
                          static_cast<float>(transform.divisor);
            for (void* state : slice.states) {
              value = static_cast<float*>(state)[i] += value;
            }
            static_cast<float*>(slice.master)[i] -= static_cast<float>(rate) * value;
          }
        };
    const auto build = [&](int states, std::vector<std::string> names) {
      nn::Linear model(40, 3);
      model->weight.data().fill_(1);
      Engine engine(model, Rule(states, std::move(names), chain), options, world);
      for (int step = 0; step < 3; ++step) {
        engine.backward(engine.forward(torch::ones({1, 40})).sum());
        engine.step();
      }
      EXPECT_TRUE((model->weight == 1 - std::exp2(-10) * (1 + 5 + 15)).all().item<bool>());
    };
    build(4, {"a", "b", "c", "d"});
    for (const int states : {5, -1}) {
      const std::string message =
          message_of<ConfigError>([&] { build(states, std::vector<std::string>(5, "same")); });
      EXPECT_TRUE(contains(message, "mine") && contains(message, "0 to 4")) << message;
    }
    for (const std::vector<std::string>& names :
         {std::vector<std::string>{"a"}, {"a", "a"}, {"a", "b", "c"}}) {
      const std::string message = message_of<ConfigError>([&] { build(2, names); });
      EXPECT_TRUE(contains(message, "mine") && contains(message, "names")) << message;
    }
  });
}

// The second unit's update fails when the first is on its way to the others.
TEST(Misuse, OfAnUpdateThatThrowsCanBeUnwrapped) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    options.unit_bytes = 64;
    // With several threads: more than one errand each.
    const std::pair<int, int> kCases[] = {{1, 64}, {3, 1100}};
    for (const auto& [threads, width] : kCases) {
      SCOPED_TRACE(detail::concat("threads ", threads));
      options.threads = threads;
      torch::manual_seed(1);
      nn::Sequential model(nn::Linear(nn::LinearOptions(width, width).bias(false)),
                           nn::Linear(nn::LinearOptions(width, width).bias(false)));
      const Tensor before = model->parameters()[1].detach().clone();
      const auto seen = std::make_shared<std::atomic<int>>(0);
      const int good = threads == 1 ? 1 : 0;
      Engine engine(model,
                    Rule(0,
                         {},
                         [seen, good](const ParameterSlice&, const GradientTransform&, double) {
                           if ((*seen)++ >= good) {
                             throw std::runtime_error("the rule says no");
                           }
                         }),
                    options,
                    world);
      const auto backward = [&] { engine.backward(engine.forward(torch::ones({1, width})).sum()); };
      backward();
      EXPECT_TRUE(contains(message_of<std::runtime_error>([&] { engine.step(); }), "says no"));
      const std::function<void()> kCalls[] = {[&] { engine.step(); },
                                              backward,
                                              [&] { engine.flush(); },
                                              [&] { engine.give_up("no"); },
                                              [&] { (void)engine.gathered(); },
                                              [&] { (void)engine.state(); }};
      for (const auto& call : kCalls) {
        const std::string message = message_of<ConfigError>(call);
        EXPECT_TRUE(contains(message, "half updated") && contains(message, "unwrap()")) << message;
      }
      engine.unwrap();
      EXPECT_TRUE(torch::equal(model->parameters()[1], before));
      Engine next(model, Sgd({.lr = 0.5}), options, world);
      next.backward(next.forward(torch::ones({1, width})).sum());
      EXPECT_TRUE(next.step());
    }
  });
}

// Engine and model go with the failure; what the units before it have sent is still on its way.
TEST(Misuse, OfAnUpdateThatThrowsMayEndItsEngine) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    options.unit_bytes = 64;
    const auto attempt = [&] {
      nn::Sequential model;
      for (int layer = 0; layer < 3; ++layer) {
        model->push_back(nn::Linear(nn::LinearOptions(256, 256).bias(false)));
      }
      const auto seen = std::make_shared<std::atomic<int>>(0);
      const bool slow = world->rank() == 1;
      Engine engine(model,
                    Rule(0,
                         {},
                         [seen, slow](const ParameterSlice&, const GradientTransform&, double) {
                           if ((*seen)++ >= 2) {
                             throw std::runtime_error("the rule says no");
                           }
                           std::this_thread::sleep_for(std::chrono::milliseconds(slow ? 50 : 0));
                         }),
                    options,
                    world);
      engine.backward(engine.forward(torch::ones({1, 256})).sum());
      engine.step();
    };
    EXPECT_TRUE(contains(message_of<std::runtime_error>(attempt), "says no"));
    std::vector<float> ones(10, 1);
    world->all_reduce(ones).wait();
    EXPECT_EQ(ones, std::vector<float>(10, static_cast<float>(world->size())));
  });
}

// One rank breaks a parameter inside the scope: all hear of it, nothing is taken, training goes on.
TEST(Misuse, OfAScopeIsRefusedOnEveryRank) {
  in_every_mode([](std::shared_ptr<World> world, const EngineOptions& options) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.5}), options, world);
    const int last = world->size() - 1;
    const std::string message = message_of<ConfigError>([&] {
      auto scope = engine.gathered();
      const torch::NoGradGuard no_grad;
      model->first->weight.fill_(7);
      if (world->rank() == last) {
        model->second->bias.set_data(torch::zeros({5}));
      }
      scope.close();
    });
    EXPECT_TRUE(contains(message, "second.bias") && contains(message, "copy_()")) << message;
    EXPECT_EQ(contains(message, detail::concat("rank ", last, ":")), world->rank() != last);
    {
      const auto scope = engine.gathered();
      EXPECT_FALSE((model->first->weight == 7).any().item<bool>());
    }
    engine.backward(engine.forward(torch::ones({1, 6})).sum());
    EXPECT_TRUE(engine.step());
  });
}

// --- states from elsewhere

TEST(Misuse, OfProgressIsFoundBeforeAnythingChanges) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    options.scale_loss = true;
    Net model;
    Engine engine(model, Adam({.lr = 0.01}), options, world);
    const Tensor before = model->first->weight.clone();
    bool filled = false;
    const auto text = [](const std::string& steps,
                         const std::string& rate,
                         const std::string& updates,
                         const std::string& scale) {
      return R"({"optimizer":"adam","steps":)" + steps + R"(,"base_rate":)" + rate +
             R"(,"updates":)" + updates + R"(,"loss_scale":{"scale":)" + scale +
             R"(,"good_steps":0,"skipped":0}})";
    };
    const std::pair<std::string, const char*> kBad[] = {
        {text("-1", "1", "{}", "1"), "steps"},
        {text("1.5", "1", "{}", "1"), "steps"},
        {text("1e300", "1", "{}", "1"), "steps"},
        {text("9223372036854775808", "1", "{}", "1"), "steps"},
        {text("3", "-5", "{}", "1"), "base_rate"},
        {text("3", "1e999", "{}", "1"), "restore()"},
        {text("3", "1", R"({"first.weight":-7})", "1"), "first.weight"},
        {text("3", "1", "[1]", "1"), "restore()"},
        {text("3", "1", "{}", "0"), "scale"},
        {text("3", "1", "{}", "-2"), "scale"},
        {text("3", "1", "{}", "3"), "scale"},
    };
    for (const auto& [bad, what] : kBad) {
      const std::string message = message_of<ConfigError>(
          [&] { engine.restore([&](const StateView&) { filled = true; }, bad); });
      EXPECT_TRUE(contains(message, what)) << bad << ": " << message;
    }
    EXPECT_FALSE(filled);
    EXPECT_EQ(engine.steps(), 0);
    EXPECT_EQ(engine.learning_rate(), 0.01);
    EXPECT_EQ(engine.loss_scale(), 65536);
    EXPECT_TRUE(torch::equal(model->first->weight, before));
    engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    EXPECT_TRUE(engine.step());
  });
}

// --- objects

TEST(Misuse, OfAnEngineThatWasMovedFromIsNoCrash) {
  in_every_mode([](std::shared_ptr<World> world, const EngineOptions& options) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), options, world);
    auto other = std::move(engine);
    const std::function<void()> kCalls[] = {[&] { (void)engine.steps(); },
                                            [&] { engine.step(); },
                                            [&] { (void)engine.model(); },
                                            [&] { (void)engine.forward(input_of(0, 0)); },
                                            [&] { (void)engine.options(); },
                                            [&] { engine.unwrap(); }};
    for (const auto& call : kCalls) {
      EXPECT_TRUE(contains(message_of<ConfigError>(call), "moved from"));
    }
    other.backward(loss_of(other.forward(input_of(0, world->rank()))));
    EXPECT_TRUE(other.step());
    Gathered scope = other.gathered();
    Gathered moved = std::move(scope);
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { scope.close(); }), "moved from"));
    moved.close();
  });
}

}  // namespace
}  // namespace trireme
