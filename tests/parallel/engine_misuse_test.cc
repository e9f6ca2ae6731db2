// What an engine is not made for: it says so and leaves everything usable, or does what LibTorch
// does.

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"
#include "trireme/parallel/autocast.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/engine.h"
#include "trireme/parallel/sharded_model.h"
#include "trireme/parallel/sync_batch_norm.h"

namespace trireme::engine_misuse_test {
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
  Rule(std::vector<OptimizerState> states, Update update)
      : states_(std::move(states)), update_(std::move(update)) {}
  std::string name() const override { return "mine"; }
  std::vector<OptimizerState> states(const ParameterInfo&) const override { return states_; }
  double learning_rate() const override { return std::exp2(-10); }
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double rate) const override {
    update_(slice, transform, rate);
  }
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<Rule>(*this); }

 private:
  std::vector<OptimizerState> states_;
  Update update_;
};

// --- engines that cannot be built

// What a model was before somebody tried to build an engine for it.
class Before {
 public:
  explicit Before(const nn::Module& model) : model_(model) {
    for (const auto& item : model.named_parameters()) {
      if (item.value().numel() < kMost) {
        values_[item.key()] = item.value().detach().clone();
        trainable_[item.key()] = item.value().requires_grad();
      }
    }
  }

  // `divided`: by build_sharded, whose tensors nobody may write to.
  void expect(bool divided = false) const {
    const torch::NoGradGuard no_grad;
    std::map<const void*, const at::TensorImpl*> owners;
    for (const auto& item : model_.named_parameters()) {
      const Tensor& now = item.value();
      if (now.numel() >= kMost) {
        continue;
      }
      const Tensor& values = values_.at(item.key());
      EXPECT_EQ(now.scalar_type(), values.scalar_type()) << item.key();
      EXPECT_EQ(now.sizes(), values.sizes()) << item.key();
      EXPECT_EQ(now.strides(), values.strides()) << item.key();
      EXPECT_TRUE(torch::equal(now.clone(), values)) << item.key();
      EXPECT_EQ(now.requires_grad(), trainable_.at(item.key())) << item.key();
      EXPECT_TRUE(now.is_leaf()) << item.key();
      const auto owner =
          owners.emplace(now.storage().unsafeGetStorageImpl(), now.unsafeGetTensorImpl()).first;
      EXPECT_EQ(owner->second, now.unsafeGetTensorImpl()) << item.key() << " shares its memory";
      EXPECT_EQ(now.storage().use_count(), 1U) << item.key();
      if (!divided) {
        Tensor writable = now;
        writable.add_(1);
        EXPECT_TRUE(torch::equal(writable, values + 1)) << item.key();
        writable.copy_(values);
      }
    }
  }

 private:
  static constexpr std::int64_t kMost = 1 << 30;
  const nn::Module& model_;
  std::map<std::string, Tensor> values_;
  std::map<std::string, bool> trainable_;
};

// A parameter of 128 TiB, of which the model has a single element. It is frozen, so that nothing
// but its own memory is asked for, and after that of the others.
struct HugeImpl : nn::Module {
  HugeImpl() {
    const Tensor element = torch::zeros({1}).expand({std::int64_t{1} << 47});
    register_parameter("offset", element.variable_data(), false);  // no view of another tensor
  }
};
TORCH_MODULE(Huge);

// A layer in another order of memory, one that is frozen and one that is tied, then one for which
// there is no memory.
struct DoomedImpl : NetImpl {
  nn::Conv2d convolution{nullptr};
  nn::Linear frozen{nullptr};
  Huge huge{nullptr};
  DoomedImpl() {
    convolution = register_module("convolution", nn::Conv2d(3, 4, 2));
    convolution->weight.set_data(
        convolution->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    frozen = register_module("frozen", nn::Linear(2, 5));
    for (Tensor& parameter : frozen->parameters()) {
      parameter.requires_grad_(false);
    }
    frozen->register_parameter("tied", first->bias);
    huge = register_module("huge", Huge());
  }
  Tensor forward(const Tensor& x) {
    return NetImpl::forward(x) + convolution->forward(x.expand({3, 4, 6}).unsqueeze(0)).mean() +
           frozen->forward(x.narrow(1, 0, 2)).mean();
  }
};
TORCH_MODULE(Doomed);

constexpr Precision kPrecisions[] = {Precision::kAsModel, Precision::kBFloat16};

// A later unit's memory cannot be had: those that had moved by then are the model's again, which
// can be trained without an engine, and with the next one.
TEST(Misuse, OfMemoryGivesTheModelBack) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    options.unit_bytes = 64;
    for (const Precision precision : kPrecisions) {
      SCOPED_TRACE(detail::concat("precision ", static_cast<int>(precision)));
      options.precision = precision;
      const auto trained = [&](Doomed& model) {
        Engine engine(model, Sgd({.lr = 0.5}), options, world);
        for (int step = 0; step < 2; ++step) {
          const Tensor x = input_of(step, world->rank()).to(model->first->weight.scalar_type());
          engine.backward(loss_of(engine.forward(x)).to(torch::kFloat));
          engine.step();
        }
        engine.unwrap();
      };
      Doomed untouched;
      untouched->unregister_module("huge");
      trained(untouched);

      Doomed model;
      model->first->weight.mutable_grad() = torch::ones({10, 6});
      const Before before(*model);
      for (int attempt = 0; attempt < 2; ++attempt) {
        const std::string message = message_of<MemoryError>(
            [&] { Engine engine(model, Sgd({.lr = 0.5}), options, world); });
        EXPECT_TRUE(contains(message, "was requested")) << message;
        before.expect();
        ASSERT_TRUE(model->first->weight.grad().defined());
        EXPECT_TRUE(torch::equal(model->first->weight.grad(), torch::ones({10, 6})));
      }
      // Without an engine.
      model->zero_grad();
      loss_of(model->forward(input_of(0, 0))).backward();
      EXPECT_TRUE(model->second->weight.grad().defined());
      EXPECT_FALSE(model->frozen->weight.grad().defined());
      model->zero_grad();
      // With another one.
      model->unregister_module("huge");
      trained(model);
      const auto expected = untouched->named_parameters();
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
      }
    }
  });
}

// Divided by build_sharded, they are divided again.
TEST(Misuse, OfMemoryGivesADividedModelBack) {
  struct LargeImpl : nn::Module {
    nn::Linear first{nullptr}, second{nullptr};
    LargeImpl() {
      torch::manual_seed(4);
      first = register_module("first", nn::Linear(150, 150));  // more than stays whole
      second = register_module("second", nn::Linear(150, 160));
      register_module("huge", Huge());
    }
  };
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    if (options.zero != 3) {
      return;
    }
    options.unit_bytes = 64;
    for (const Precision precision : kPrecisions) {
      options.precision = precision;
      const auto model = build_sharded(*world, [] { return std::make_shared<LargeImpl>(); });
      const Before before(*model);
      for (int attempt = 0; attempt < 2; ++attempt) {
        message_of<MemoryError>(
            [&] { EngineBase engine(model, Sgd({.lr = 0.5}), options, world); });
        before.expect(/*divided=*/true);
        const std::string refused = message_of<ConfigError>([&] {
          const torch::NoGradGuard no_grad;
          model->first->weight.add_(1);
        });
        EXPECT_TRUE(contains(refused, "build_sharded")) << refused;
      }
      model->unregister_module("huge");
      const EngineBase engine(model, Sgd({.lr = 0.5}), options, world);
    }
  });
}

// What only one rank runs into, before parameters move and while they do, ends the attempt on all:
// none waits for another, and the next attempt is everyone's.
TEST(Misuse, OnOneRankGivesTheModelBackOnAll) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    options.unit_bytes = 64;
    const int last = world->size() - 1;
    const auto works = [&](Net& model) {
      Engine engine(model, Sgd({.lr = 0.5}), options, world);
      engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
      EXPECT_TRUE(engine.step());
    };
    for (const Precision precision : kPrecisions) {
      // Rank 0's values of a later unit cannot be read.
      options.precision = precision;
      Net model;
      const Before before(*model);
      const Tensor bias = model->second->bias.detach().clone();
      if (world->rank() == 0) {
        model->second->bias.storage()
            .unsafeGetStorageImpl()
            ->release_data_and_set_meta_custom_data_ptr_error_msg_("this memory is gone");
        const std::string message =
            message_of<c10::Error>([&] { Engine engine(model, Sgd({.lr = 0.5}), options, world); });
        EXPECT_TRUE(contains(message, "this memory is gone")) << message;
      } else {
        const std::string message =
            message_of<Error>([&] { Engine engine(model, Sgd({.lr = 0.5}), options, world); });
        EXPECT_TRUE(contains(message, "rank 0: this memory is gone")) << message;
        EXPECT_FALSE(contains(message, "Exception raised")) << message;
      }
      model->second->bias.set_data(bias.clone());
      before.expect();
      options.precision = Precision::kAsModel;
      works(model);
    }
    {
      // The last rank's rule cannot be copied.
      struct Unique : Rule {
        using Rule::Rule;
        std::unique_ptr<Optimizer> clone() const override { throw MemoryError("no second one"); }
      };
      Net model;
      const Before before(*model);
      const Rule::Update nothing = [](const ParameterSlice&, const GradientTransform&, double) {};
      const std::string message = message_of<MemoryError>([&] {
        if (world->rank() == last) {
          Engine engine(model, Unique({}, nothing), options, world);
        } else {
          Engine engine(model, Rule({}, nothing), options, world);
        }
      });
      EXPECT_TRUE(contains(message, "no second one")) << message;
      EXPECT_EQ(contains(message, detail::concat("rank ", last, ": ")), world->rank() != last)
          << message;
      before.expect();
      works(model);
    }
    {
      // The last rank's options are none.
      Net model;
      const Before before(*model);
      EngineOptions wrong = options;
      wrong.accumulate = world->rank() == last ? 0 : 1;
      const std::string message =
          message_of<ConfigError>([&] { Engine engine(model, Sgd({.lr = 0.5}), wrong, world); });
      EXPECT_TRUE(contains(message, "accumulate")) << message;
      before.expect();
      works(model);
    }
    {
      // The last rank's model has a parameter that cannot be trained.
      Net model;
      if (world->rank() == last) {
        model->second->weight.set_data(torch::zeros({2, 10}, torch::kComplexFloat));
      }
      const std::string message =
          message_of<ConfigError>([&] { Engine engine(model, Sgd({.lr = 0.5}), options, world); });
      EXPECT_TRUE(contains(message, "second.weight") && contains(message, "ComplexFloat"))
          << message;
    }
  });
}

// Buffers are copied from rank 0 when parameters have moved: differences are found before.
TEST(Misuse, OfBuffersThatDifferGivesTheModelBack) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    if (world->size() == 1) {
      return;
    }
    const std::pair<Tensor, Tensor> kBuffers[] = {
        {torch::zeros({3}), torch::zeros({4})},
        {torch::zeros({6}), torch::zeros({2, 3})},
        {torch::zeros({3}), torch::zeros({3}, torch::kInt)}};
    for (const auto& [first, second] : kBuffers) {
      Net model;
      model->register_buffer("mask", world->rank() == 0 ? first : second);
      const Before before(*model);
      const std::string message =
          message_of<ConfigError>([&] { Engine engine(model, Sgd({.lr = 0.5}), options, world); });
      EXPECT_TRUE(contains(message, "buffer mask") && contains(message, "rank 1")) << message;
      before.expect();
    }
    Net model;
    model->register_buffer("sparse", torch::eye(3).to_sparse());
    const Before before(*model);
    const std::string message =
        message_of<ConfigError>([&] { Engine engine(model, Sgd({.lr = 0.5}), options, world); });
    EXPECT_TRUE(contains(message, "buffer sparse") && contains(message, "not dense")) << message;
    before.expect();
  });
}

// --- optimizers

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
    const auto build = [&](std::vector<OptimizerState> states) {
      nn::Linear model(40, 3);
      model->weight.data().fill_(1);
      Engine engine(model, Rule(std::move(states), chain), options, world);
      for (int step = 0; step < 3; ++step) {
        engine.backward(engine.forward(torch::ones({1, 40})).sum());
        engine.step();
      }
      EXPECT_TRUE((model->weight == 1 - std::exp2(-10) * (1 + 5 + 15)).all().item<bool>());
    };
    build({"a", "b", "c", "d"});
    std::string message = message_of<ConfigError>([&] { build({"a", "b", "c", "d", "e"}); });
    EXPECT_TRUE(contains(message, "mine") && contains(message, "0 to 4")) << message;
    message = message_of<ConfigError>([&] { build({"a", "b", "a"}); });
    EXPECT_TRUE(contains(message, "mine") && contains(message, "2 different names")) << message;
  });
}

// The second unit's update fails when the first is on its way to the others.
TEST(Misuse, OfAnUpdateThatThrowsCanBeUnwrapped) {
  in_every_mode([](std::shared_ptr<World> world, EngineOptions options) {
    options.unit_bytes = 64;
    // With several threads: more than one block each.
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
                    Rule({},
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
                    Rule({},
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

// --- in a job whose number of ranks may change

struct NormedImpl : nn::Module {
  explicit NormedImpl(const std::shared_ptr<World>& world) {
    norm = register_module("norm", SyncBatchNorm(nn::BatchNormOptions(6), world));
    last = register_module("last", nn::Linear(6, 2));
  }
  Tensor forward(const Tensor& x) { return last->forward(norm->forward(x)); }
  SyncBatchNorm norm{nullptr};
  nn::Linear last{nullptr};
};
TORCH_MODULE(Normed);

TEST(Misuse, OfANumberOfRanksThatMayChangeIsRefusedByName) {
  fork_ranks(2, [job = testing::unique_job()](int rank) {
    const std::shared_ptr<World> world = init(testing::options_for(job, rank, 2));
    EngineOptions hooked;
    hooked.gradient_hook = [](const GradientBucket& bucket) { return bucket.values; };
    EngineOptions local;
    local.sum_order = SumOrder::kLocalFirst;
    const std::pair<std::string, std::function<void()>> kCases[] = {
        {"EngineOptions::gradient_hook",
         [&] {
           Net model;
           const Engine engine(model, Sgd({.lr = 0.1}), hooked, world);
         }},
        {"EngineOptions::sum_order kLocalFirst",
         [&] {
           Net model;
           const Engine engine(model, Sgd({.lr = 0.1}), local, world);
         }},
        {"SyncBatchNorm (module \"norm\")",
         [&] {
           Normed model(world);
           const Engine engine(model, Sgd({.lr = 0.1}), EngineOptions{}, world);
         }},
        {"DataParallel", [&] {
           Net model;
           const DataParallel parallel(model, {}, world);
         }}};
    for (const auto& [name, make] : kCases) {
      make();  // in any other job it is fine
    }
    setenv(kEnvRanksMayChange, "on", 1);
    for (const auto& [name, make] : kCases) {
      const std::string message = message_of<ConfigError>(make);
      EXPECT_TRUE(contains(message, name + ": the result depends on the number of ranks"))
          << message;
      EXPECT_TRUE(contains(message, "--allow-changes")) << message;
    }
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), EngineOptions{}, world);
    engine.backward(loss_of(engine.forward(input_of(0, rank))));
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
}  // namespace trireme::engine_misuse_test
