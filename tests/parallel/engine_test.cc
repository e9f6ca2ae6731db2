// What a user of the engine sees besides the bits: scopes, errors, joining.

#include "trireme/parallel/engine.h"

#include <cmath>

#include <gtest/gtest.h>

#include "parallel/engine_worlds.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/sync_batch_norm.h"

namespace trireme::engine_test {
namespace {

namespace nn = torch::nn;
using engine_worlds::contains;
using engine_worlds::in_every_mode;
using engine_worlds::in_world;
using engine_worlds::kModes;
using engine_worlds::loss_of;
using engine_worlds::Wide;
using testing::message_of;
using torch::Tensor;

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

TEST(Engine, ReadsLikeTheManual) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    Engine engine(model, AdamW({.lr = 3e-3}), {.zero = 3}, world);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 30; ++step) {
      auto loss = loss_of(engine.forward(input_of(0, world->rank())));
      engine.backward(loss);
      EXPECT_TRUE(engine.step());
      last = loss.item<double>();
      first = step == 0 ? last : first;
    }
    EXPECT_LT(last, first / 2);
    EXPECT_EQ(engine.steps(), 30);
  });
}

TEST(Engine, ParametersAreReadAnywhereAndWrittenInAScope) {
  in_every_mode(3, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net reference;
    Net model;
    Engine engine(
        model, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement, .unit_bytes = 64}, world);
    // Read: no scope is needed, on no thread.
    EXPECT_TRUE(torch::equal(model->first->weight, reference->first->weight));
    std::thread([&] {
      EXPECT_TRUE(torch::equal(model->second->bias, reference->second->bias));
    }).join();
    // A write is refused by name, also through a view, and changes nothing.
    const torch::NoGradGuard no_grad;
    for (const auto& write : std::vector<std::function<void()>>{
             [&] { model->first->weight.zero_(); },
             [&] { model->first->weight.t().add_(1); },
             [&] { model->first->weight.detach()[0].fill_(7); },
             [&] {
               model->first->weight.data().copy_(torch::zeros({10, 6}));
             }}) {
      const std::string message = message_of<ConfigError>(write);
      EXPECT_TRUE(contains(message, "first.weight")) << message;
      EXPECT_TRUE(contains(message, "engine.gathered")) << message;
    }
    EXPECT_TRUE(torch::equal(model->first->weight, reference->first->weight));
    // In a scope, what rank 0 writes counts.
    {
      auto scope = engine.gathered({"first.weight"});
      model->first->weight.fill_(world->rank() + 1);
      EXPECT_TRUE(contains(message_of<ConfigError>([&] { model->second->weight.zero_(); }),
                           "second.weight"));
      scope.close();
    }
    EXPECT_TRUE(torch::equal(model->first->weight, torch::ones({10, 6})));
    EXPECT_THROW(model->first->weight.zero_(), ConfigError);
    {
      auto scope = engine.gathered();
      model->second->bias.fill_(5);
    }
    EXPECT_EQ(model->second->bias.sum().item<float>(), 10);
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { (void)engine.gathered({"nothing"}); }),
                         "no parameter nothing"));
  });
}

TEST(Engine, WritesInAScopeReachTheMastersOfHalfPrecision) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net model;
    Engine engine(model,
                  Sgd({.lr = 0}),
                  {.zero = zero, .placement = placement, .precision = Precision::kBFloat16},
                  world);
    {
      auto scope = engine.gathered({"first.bias"});
      const torch::NoGradGuard no_grad;
      model->first->bias.fill_(0.75);
    }
    engine.backward(loss_of(engine.forward(input_of(0, 0).to(torch::kBFloat16))));
    engine.step();  // with a rate of 0 the parameter is rounded from its master again
    EXPECT_TRUE(torch::equal(model->first->bias.to(torch::kFloat), torch::full({10}, 0.75)));
  });
}

TEST(Engine, AScopeThatOnlyReadsLeavesTheMastersAlone) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    std::vector<Tensor> results;
    for (const bool read : {false, true}) {
      Net model;
      Engine engine(model,
                    Sgd({.lr = 1e-3}),
                    {.zero = zero, .placement = placement, .precision = Precision::kBFloat16},
                    world);
      for (int step = 0; step < 20; ++step) {
        engine.backward(
            loss_of(engine.forward(input_of(step, world->rank()).to(torch::kBFloat16))));
        engine.step();
        if (read) {
          auto scope = engine.gathered();
          EXPECT_THROW(engine.unwrap(), ConfigError);  // not inside of it
        }
      }
      results.push_back(model->first->weight.clone());
    }
    EXPECT_TRUE(torch::equal(results[0], results[1]));
  });
}

// An optimizer that takes its time on one rank: the others are in the next step by then.
class SlowSgd final : public Optimizer {
 public:
  SlowSgd(double lr, bool slow) : sgd_({.lr = lr}), slow_(slow) {}
  std::string name() const override { return "slow sgd"; }
  std::vector<OptimizerState> states(const ParameterInfo&) const override { return {}; }
  double learning_rate() const override { return sgd_.learning_rate(); }
  void update(const ParameterSlice& slice,
              const GradientTransform& transform,
              double lr) const override {
    if (slow_) {
      usleep(5000);
    }
    sgd_.update(slice, transform, lr);
  }
  std::unique_ptr<Optimizer> clone() const override { return std::make_unique<SlowSgd>(*this); }

 private:
  Sgd sgd_;
  bool slow_;
};

TEST(Engine, WaitsForASlowRankWhereItMust) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    std::vector<Tensor> results;
    for (const bool slow : {false, true}) {
      Net model;
      Engine engine(model,
                    SlowSgd(0.1, slow && world->rank() == 1),
                    {.zero = zero, .placement = placement, .unit_bytes = 64},
                    world);
      for (int step = 0; step < 6; ++step) {
        engine.backward(loss_of(engine.forward(input_of(step, world->rank()))));
        if (slow && world->rank() == 0) {
          usleep(3000);
          (void)model->second->weight.sum().item<float>();  // read while the other is in step()
        }
        engine.step();
      }
      results.push_back(model->first->weight.clone());
    }
    EXPECT_TRUE(torch::equal(results[0], results[1]));
  });
}

TEST(Engine, GivesTheAveragedGradientAndItsNorm) {
  in_every_mode(3, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net reference;
    Tensor sum;
    double square = 0;
    std::vector<Tensor> sums;
    for (int rank = 0; rank < 3; ++rank) {
      reference->zero_grad();
      loss_of(reference->forward(input_of(0, rank))).backward();
      std::size_t i = 0;
      for (const Tensor& parameter : reference->parameters()) {
        if (rank == 0) {
          sums.push_back(parameter.grad().clone());
        } else {
          sums[i].add_(parameter.grad());
        }
        ++i;
      }
    }
    for (Tensor& each : sums) {
      each.div_(3);
      square += each.to(torch::kDouble).pow(2).sum().item<double>();
    }
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement}, world);
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.grad("first.weight"); }),
                         "without backward"));
    engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    EXPECT_FALSE(model->first->weight.grad().defined());
    EXPECT_TRUE(torch::equal(engine.grad("first.weight"), sums[0]));
    EXPECT_TRUE(torch::equal(engine.grad("second.bias"), sums[3]));
    const double norm = engine.clip_grad_norm(0.01);
    EXPECT_NEAR(norm, std::sqrt(square), 1e-9);
    EXPECT_TRUE(
        torch::allclose(engine.grad("first.weight"), sums[0] * (0.01 / (norm + 1e-6)), 1e-5));
    engine.step();
    EXPECT_TRUE(torch::allclose(
        model->first->weight, reference->first->weight - sums[0] * (0.001 / (norm + 1e-6)), 1e-5));
  });
}

TEST(Engine, SaysWhatWasForgotten) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = 2, .accumulate = 2}, world);
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.step(); }), "without backward()"));
    EXPECT_TRUE(
        contains(message_of<ConfigError>([&] { engine.clip_grad_norm(1); }), "without backward()"));
    auto loss = loss_of(engine.forward(input_of(0, 0)));
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { loss.backward({}, true); }),
                         "engine.backward(loss)"));
    engine.backward(loss_of(engine.forward(input_of(0, 0))));
    EXPECT_TRUE(contains(
        message_of<ConfigError>([&] { engine.backward(loss_of(engine.forward(input_of(0, 0)))); }),
        "twice without step()"));
    EXPECT_EQ(engine.clip_grad_norm(1), 0);  // not the step's last micro-batch
    EXPECT_FALSE(engine.step());
    // Where the data has ended in the middle of a step, there is a way out, which is named.
    const std::function<void()> kCalls[] = {[&] { (void)engine.gathered(); },
                                            [&] { (void)engine.state(); },
                                            [&] { engine.join(); },
                                            [&] {
                                              engine.deal({2, 2});
                                            },
                                            [&] { engine.unwrap(); }};
    for (const auto& call : kCalls) {
      const std::string message = message_of<ConfigError>(call);
      EXPECT_TRUE(contains(message, "middle of a step, after 1 of this rank's 2 micro-batches") &&
                  contains(message, "Engine::flush()"))
          << message;
    }
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.step(); }), "Engine::flush()"));
    engine.backward(loss_of(engine.forward(input_of(0, 1))));
    EXPECT_TRUE(engine.step());
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.backward(torch::ones({2})); }),
                         "one element"));
    // Other memory under a parameter.
    model->first->weight.set_data(torch::zeros({10, 6}));
    auto other = loss_of(model->forward(input_of(0, 0)));
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.backward(other); }), "first.weight"));
  });
}

TEST(Engine, RefusesWhatCannotBeTrained) {
  in_world(2, [](std::shared_ptr<World> world) {
    const auto build = [&](std::shared_ptr<nn::Module> model, EngineOptions options = {}) {
      return message_of<ConfigError>([&] { EngineBase(model, Sgd({.lr = 0.1}), options, world); });
    };
    EXPECT_TRUE(contains(build(nn::ReLU().ptr()), "no parameters"));
    EXPECT_TRUE(contains(build(Net().ptr(), {.zero = 4}), "0 (DDP), 1, 2 or 3"));
    EXPECT_TRUE(contains(build(Net().ptr(), {.units = {"third"}}), "third"));
    EXPECT_TRUE(contains(build(Net().ptr(), {.shares = {1, 2, 3}}), "3 entries for 2 ranks"));
    auto tied = std::make_shared<nn::Module>();
    auto one = tied->register_parameter("one", torch::ones({3}));
    auto two = tied->register_parameter("two", torch::ones({3}));
    two.set_data(one.data());
    const std::string message = build(tied);
    EXPECT_TRUE(contains(message, "one and two")) << message;
    // A model that differs between the ranks.
    auto uneven = std::make_shared<nn::Module>();
    uneven->register_parameter("same", torch::ones({3}));
    uneven->register_parameter("other", torch::ones({3 + world->rank()}));
    const std::string difference = build(uneven);
    EXPECT_TRUE(contains(
        difference,
        "rank 0 has other float32[3], strides [1] where rank 1 has other float32[4], strides [1]"))
        << difference;
    // And the world still works.
    std::vector<int> check = {1};
    world->all_reduce(check).wait();
    EXPECT_EQ(check[0], 2);
  });
}

TEST(Engine, NamesTheRankAndParameterOfANanAndChangesNothing) {
  in_every_mode(3, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net model;
    Net reference;
    Engine engine(model, AdamW({.lr = 0.1}), {.zero = zero, .placement = placement}, world);
    auto loss = loss_of(engine.forward(input_of(0, 0)));
    if (world->rank() == 1) {
      loss = loss + torch::log(model->second->bias.sum() * 0);  // its gradient is not finite
    }
    engine.backward(loss);
    try {
      engine.step();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const GradientError& error) {
      EXPECT_EQ(error.rank(), 1);
      EXPECT_TRUE(contains(error.what(), "second.bias is not finite on rank 1")) << error.what();
    }
    EXPECT_TRUE(torch::equal(model->first->weight, reference->first->weight));
    EXPECT_TRUE(torch::equal(model->second->bias, reference->second->bias));
    engine.backward(loss_of(engine.forward(input_of(0, 0))));
    EXPECT_TRUE(engine.step());  // and it goes on
  });
}

TEST(Engine, AnOverflowOnOneRankSkipsTheStepOnAll) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net model;
    Engine engine(model,
                  Sgd({.lr = 0.1}),
                  {.zero = zero,
                   .placement = placement,
                   .precision = Precision::kFloat16,
                   .loss_scale = {.initial = 1024}},
                  world);
    const Tensor before = model->first->weight.clone();
    auto loss = loss_of(engine.forward(input_of(0, 0).to(torch::kHalf)));
    engine.backward(world->rank() == 1 ? loss * 60000 * 60000 : loss);
    EXPECT_TRUE(engine.step());
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_EQ(engine.loss_scale(), 512);
    EXPECT_TRUE(torch::equal(model->first->weight, before));
    EXPECT_EQ(engine.steps(), 0);
  });
}

TEST(Engine, AnOldGraphIsNotUsedAfterAnUpdate) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement}, world);
    const Tensor old = loss_of(engine.forward(input_of(0, 0)));
    engine.backward(loss_of(engine.forward(input_of(0, 1))));
    engine.step();
    try {
      engine.backward(old);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_TRUE(contains(error.what(), "modified by an inplace operation")) << error.what();
    }
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.step(); }), "backward pass failed"));
    engine.unwrap();  // the model is not lost
    loss_of(model->forward(input_of(0, 0))).backward();
  });
}

// Plain SGD on the mean over the ranks that still have data.
TEST(Engine, RanksMayRunOutOfData) {
  for (const Divisor divisor : {Divisor::kPresent, Divisor::kInitial}) {
    in_every_mode(3, [&](std::shared_ptr<World> world, int zero, Placement placement) {
      Net reference;
      for (int step = 0; step < 3; ++step) {  // rank r has r + 1 batches
        std::vector<Tensor> sums(4);
        int present = 0;
        for (int rank = step; rank < 3; ++rank) {
          reference->zero_grad();
          loss_of(reference->forward(input_of(step, rank))).backward();
          ++present;
          for (std::size_t i = 0; i < 4; ++i) {
            const Tensor grad = reference->parameters()[i].grad();
            sums[i] = sums[i].defined() ? sums[i] + grad : grad.clone();
          }
        }
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < 4; ++i) {
          reference->parameters()[i].sub_(0.5 *
                                          (sums[i] / (divisor == Divisor::kPresent ? present : 3)));
        }
      }
      Net model;
      Engine engine(model,
                    Sgd({.lr = 0.5}),
                    {.zero = zero, .placement = placement, .divisor = divisor},
                    world);
      for (int step = 0; step <= world->rank(); ++step) {
        engine.backward(loss_of(engine.forward(input_of(step, world->rank()))));
        engine.clip_grad_norm(1e6);  // joined ranks follow
        EXPECT_TRUE(engine.grad("first.bias").defined());
        engine.step();
      }
      engine.join();
      EXPECT_EQ(engine.steps(), 3);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(torch::equal(model->parameters()[i], reference->parameters()[i])) << i;
      }
    });
  }
}

struct RowsImpl : nn::Module {
  nn::Embedding rows{nullptr};
  nn::Linear head{nullptr};
  explicit RowsImpl(bool sparse) {
    torch::manual_seed(5);
    rows = register_module("rows", nn::Embedding(nn::EmbeddingOptions(37, 5).sparse(sparse)));
    head = register_module("head", nn::Linear(5, 3));
  }
  Tensor forward(const Tensor& index) { return head->forward(rows->forward(index)); }
};
TORCH_MODULE(Rows);

TEST(Engine, SparseRowsGiveTheResultOfDenseOnes) {
  for (const int size : {1, 3}) {
    in_every_mode(size, [&](std::shared_ptr<World> world, int zero, Placement placement) {
      std::vector<Tensor> results;
      for (const bool sparse : {false, true}) {
        Rows model(sparse);
        Engine engine(model,
                      AdamW({.lr = 0.1}),
                      {.zero = zero, .placement = placement, .micro_batches = 7},
                      world);
        for (int step = 0; step < 5; ++step) {
          for (std::int64_t m = world->rank(); m < 7; m += size) {
            const Tensor index =
                (input_of(step, static_cast<int>(m)).abs() * 20).to(torch::kLong).remainder(37);
            engine.backward(loss_of(engine.forward(index)));
            engine.step();
          }
        }
        results.push_back(model->rows->weight.clone());
      }
      EXPECT_TRUE(torch::equal(results[0], results[1]));
    });
  }
}

TEST(Engine, SparseRowsOfSeveralLocalMicroBatchesAddUp) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    std::vector<Tensor> results;
    for (const bool sparse : {false, true}) {
      Rows model(sparse);
      Engine engine(model,
                    Sgd({.lr = 0.5}),
                    {.zero = zero,
                     .placement = placement,
                     .accumulate = 3,
                     .sum_order = SumOrder::kLocalFirst},
                    world);
      for (int m = 0; m < 9; ++m) {
        const Tensor index = (input_of(m, world->rank()).abs() * 20).to(torch::kLong).remainder(37);
        engine.backward(loss_of(engine.forward(index)));
        engine.step();
      }
      EXPECT_EQ(engine.steps(), 3);
      results.push_back(model->rows->weight.clone());
    }
    EXPECT_TRUE(torch::allclose(results[0], results[1], 1e-6, 1e-7));
  });
}

TEST(Engine, AUsersHookReplacesTheSum) {
  for (const std::int64_t rounds : {1, 2}) {
    in_every_mode(2, [&](std::shared_ptr<World> world, int zero, Placement placement) {
      std::vector<Tensor> results;
      int calls = 0;
      // As a user writes it: half the bytes on the wire.
      const GradientHook half = [&](const GradientBucket& bucket) {
        ++calls;
        Tensor small = bucket.values.to(torch::kBFloat16);
        bucket.ranks.all_reduce(small).wait();
        return small.to(bucket.values.scalar_type());
      };
      // And one that does what the engine does: with two ranks the order is the same.
      const GradientHook exact = [](const GradientBucket& bucket) {
        Tensor all = bucket.values.clone();
        bucket.ranks.all_reduce(all).wait();
        return all;
      };
      for (const GradientHook& hook : {GradientHook{}, exact, half}) {
        Net model;
        Engine engine(model,
                      Sgd({.lr = 0.1}),
                      {.zero = zero,
                       .placement = placement,
                       .accumulate = rounds,
                       .bucket_bytes = 100,
                       .gradient_hook = hook},
                      world);
        for (int step = 0; step < 4; ++step) {
          engine.backward(loss_of(engine.forward(input_of(step, world->rank()))));
          engine.step();
        }
        results.push_back(model->first->weight.clone());
      }
      EXPECT_GT(calls, 0);
      if (rounds == 1) {
        EXPECT_TRUE(torch::equal(results[0], results[1]));
      }
      EXPECT_TRUE(torch::allclose(results[0], results[1], 1e-6));
      EXPECT_TRUE(torch::allclose(results[0], results[2], 1e-2, 1e-3));
      EXPECT_FALSE(torch::equal(results[0], results[2]));
    });
  }
}

TEST(Engine, LocalSumsAreEqualInEveryMode) {
  in_world(3, [](std::shared_ptr<World> world) {
    std::vector<Tensor> results;
    for (const auto& [zero, placement] : kModes) {
      Net model;
      Engine engine(model,
                    AdamW({.lr = 0.05}),
                    {.zero = zero,
                     .placement = placement,
                     .micro_batches = 7,
                     .sum_order = SumOrder::kLocalFirst},
                    world);
      for (int step = 0; step < 6; ++step) {
        for (int m = world->rank(); m < 7; m += 3) {
          engine.backward(loss_of(engine.forward(input_of(step, m))));
          engine.step();
        }
      }
      EXPECT_EQ(engine.steps(), 6);
      results.push_back(model->first->weight.clone());
      EXPECT_TRUE(torch::equal(results.back(), results.front()));
    }
  });
}

TEST(Engine, KeepsAMovingAverage) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net model;
    Engine engine(
        model, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement, .ema_decay = 0.9}, world);
    Tensor expected = model->first->weight.clone();
    for (int step = 0; step < 5; ++step) {
      engine.backward(loss_of(engine.forward(input_of(step, world->rank()))));
      engine.step();
      expected = 0.9 * expected + 0.1 * model->first->weight;
    }
    EXPECT_TRUE(torch::allclose(engine.average("first.weight"), expected, 1e-6));
  });
}

TEST(Engine, GivesTheModelBackAndCanBeBuiltAgain) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Net model;
    for (int round = 0; round < 3; ++round) {
      Engine engine(model, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement}, world);
      engine.backward(loss_of(engine.forward(input_of(round, world->rank()))));
      engine.step();
      const Tensor trained = model->first->weight.clone();
      engine.unwrap();
      EXPECT_TRUE(torch::equal(model->first->weight, trained));
      const torch::NoGradGuard no_grad;
      model->first->weight.mul_(1);  // ordinary again
      EXPECT_THROW(engine.step(), ConfigError);
    }
    loss_of(model->forward(input_of(0, 0))).backward();
    EXPECT_TRUE(model->first->weight.grad().defined());
  });
}

TEST(Engine, AModelHasOneEngineAtATime) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    {
      Engine engine(model, Sgd({.lr = 0.1}), {.zero = 3}, world);
      const std::string message =
          message_of<ConfigError>([&] { Engine second(model, Sgd({.lr = 0.1}), {}, world); });
      EXPECT_TRUE(contains(message, "first.weight belongs to another engine")) << message;
    }
    Engine again(model, Sgd({.lr = 0.1}), {.zero = 2}, world);  // it is gone
    again.backward(loss_of(again.forward(input_of(0, 0))));
    again.step();
  });
}

TEST(Engine, SaysThatADividedModelLostItsEngine) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    { Engine engine(model, Sgd({.lr = 0.1}), {.zero = 3, .placement = Placement::kCopied}, world); }
    const std::string message = message_of<ConfigError>([&] { model->forward(input_of(0, 0)); });
    EXPECT_TRUE(contains(message, "engine.unwrap()")) << message;
  });
}

TEST(Engine, TwoEnginesLiveSideBySide) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net a;
    Net b;
    Engine one(a, Sgd({.lr = 0.1}), {.zero = 3}, world);
    Engine two(b, Sgd({.lr = 0.1}), {.zero = 1}, world);
    for (int step = 0; step < 3; ++step) {
      // Several forwards before one backward, too.
      const Tensor loss =
          loss_of(one.forward(input_of(step, 0))) + loss_of(one.forward(input_of(step, 1)));
      one.backward(loss);
      two.backward(loss_of(two.forward(input_of(step, 0))) +
                   loss_of(two.forward(input_of(step, 1))));
      one.step();
      two.step();
    }
    EXPECT_TRUE(torch::equal(a->first->weight, b->first->weight));
  });
}

TEST(Engine, RankZeroHasTheBuffersOfAll) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    Wide model(1);
    {
      const torch::NoGradGuard no_grad;
      model->norm->running_mean.fill_(world->rank());
    }
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement}, world);
    EXPECT_EQ(model->norm->running_mean.sum().item<float>(), 0);
    engine.backward(loss_of(engine.forward(torch::randn({8, 512}) + world->rank())));
    engine.step();
    std::vector<double> mean = {model->norm->running_mean.sum().item<double>()};
    const double own = mean[0];
    world->broadcast(mean).wait();
    EXPECT_EQ(mean[0], own);
  });
}

TEST(SyncBatchNorm, NormalisesOverTheBatchesOfAllRanks) {
  in_world(3, [](std::shared_ptr<World> world) {
    SyncBatchNorm sync(nn::BatchNormOptions(5), world);
    nn::BatchNorm2d whole(nn::BatchNormOptions(5));
    std::vector<Tensor> parts;
    for (int rank = 0; rank < 3; ++rank) {
      auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank));
      parts.push_back(torch::randn({2 + rank, 5, 4, 3}, generator, torch::kFloat) + rank);
    }
    Tensor mine = parts[static_cast<std::size_t>(world->rank())].clone().requires_grad_();
    Tensor all = torch::cat(parts).requires_grad_();
    const Tensor out = sync->forward(mine);
    const Tensor expected = whole->forward(all);
    const std::int64_t first = world->rank() == 0 ? 0 : world->rank() == 1 ? 2 : 5;
    EXPECT_TRUE(torch::allclose(out, expected.narrow(0, first, mine.size(0)), 1e-4, 1e-5));
    EXPECT_TRUE(torch::allclose(sync->running_mean, whole->running_mean, 1e-4, 1e-6));
    EXPECT_TRUE(torch::allclose(sync->running_var, whole->running_var, 1e-4, 1e-6));
    out.pow(3).sum().backward();
    expected.pow(3).sum().backward();
    EXPECT_TRUE(
        torch::allclose(mine.grad(), all.grad().narrow(0, first, mine.size(0)), 1e-3, 1e-4));
    Tensor weight_gradient = sync->weight.grad().clone();
    std::vector<float> sum(weight_gradient.const_data_ptr<float>(),
                           weight_gradient.const_data_ptr<float>() + 5);
    world->all_reduce(sum).wait();
    EXPECT_TRUE(torch::allclose(torch::tensor(sum), whole->weight.grad(), 1e-3, 1e-3));
    sync->eval();
    whole->eval();
    EXPECT_TRUE(torch::allclose(sync->forward(mine), whole->forward(mine), 1e-4, 1e-5));
  });
}

TEST(Engine, ADeadRankIsNamedInTheMiddleOfBackward) {
  const std::string job = testing::unique_job();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) {
    pids.push_back(testing::fork_rank(rank, [&](int me) {
      at::set_num_threads(1);
      const auto world = init(testing::options_for(job, me, 3));
      Wide model;
      Engine engine(model, Sgd({.lr = 0.1}), {.zero = 3}, world);
      const std::string message = message_of<CommError>([&] {
        for (int step = 0; step < 100; ++step) {
          Tensor out = engine.forward(torch::ones({8, 512}));
          if (me == 2 && step == 2) {
            out.register_hook([](const Tensor&) { _exit(9); });
          }
          engine.backward(loss_of(out));
          engine.step();
        }
      });
      EXPECT_TRUE(contains(message, "rank 2")) << message;
    }));
  }
  EXPECT_EQ(testing::wait_for(pids[0]), 0);
  EXPECT_EQ(testing::wait_for(pids[1]), 0);
  EXPECT_NE(testing::wait_for(pids[2]), 0);
}

}  // namespace
}  // namespace trireme::engine_test
