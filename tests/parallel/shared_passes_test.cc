// A backward of several engines that fails on one rank: all engines are given up, by every rank, in
// one order, and the next step is as if nothing had been.

#include <new>

#include <gtest/gtest.h>

#include <torch/optim/sgd.h>

#include "parallel/engine_worlds.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::shared_passes_test {
namespace {

namespace nn = torch::nn;
using engine_worlds::contains;
using testing::message_of;
using torch::Tensor;

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  explicit NetImpl(std::uint64_t seed) {
    torch::manual_seed(seed);
    first = register_module("first", nn::Linear(6, 9));
    second = register_module("second", nn::Linear(9, 6));
  }
  Tensor forward(const Tensor& x) { return second->forward(torch::tanh(first->forward(x))); }
};
TORCH_MODULE(Net);

Tensor input_of(std::int64_t step, std::int64_t micro_batch) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + micro_batch));
  return torch::randn({4, 6});
}

enum class Fails { kForward, kBackward, kSecondLoss };

// Two engines whose passes are one. `b` may have a step in each pass, and `a` in every third.
struct Pair {
  Pair(std::shared_ptr<World> world, EngineOptions options, bool uneven)
      : a(one, Sgd({.lr = 0.25}), with(options, 3 * world->size()), world),
        b(other,
          Sgd({.lr = 0.25}),
          with(options, (uneven ? 1 : 3) * world->size()),
          world->split(0, world->rank())) {}

  static EngineOptions with(EngineOptions options, std::int64_t micro_batches) {
    options.micro_batches = micro_batches;
    options.bucket_bytes = 64;
    options.bucket_count = 2;
    return options;
  }
  Tensor loss(std::int64_t step, std::int64_t pass) {
    return other->forward(one->forward(input_of(step, a.micro_batch(pass)))).pow(2).mean();
  }
  void end(bool turned) {
    if (turned) {
      b.step();
      a.step();
    } else {
      a.step();
      b.step();
    }
  }
  void take_step(std::int64_t step, bool turned) {
    for (std::int64_t pass = 0; pass < 3; ++pass) {
      backward(loss(step, pass), {&a, &b});
      end(turned);
    }
  }

  Net one{1}, other{2};
  Engine<NetImpl> a, b;
};

// The same in one process, with LibTorch alone.
void expect_trained(Pair& pair, int ranks, int steps, bool uneven) {
  Net one(1), other(2);
  torch::optim::SGD a(one->parameters(), 0.25), b(other->parameters(), 0.25);
  for (int step = 0; step < steps; ++step) {
    a.zero_grad();
    b.zero_grad();
    for (int m = 0; m < 3 * ranks; ++m) {
      const Tensor loss = other->forward(one->forward(input_of(step, m))).pow(2).mean();
      (loss / (3.0 * ranks)).backward();
      if (uneven && m % ranks == ranks - 1) {  // its mean is that of one pass
        for (auto& parameter : other->parameters()) {
          parameter.mutable_grad().mul_(3);
        }
        b.step();
        b.zero_grad();
      }
    }
    a.step();
    if (!uneven) {
      b.step();
    }
  }
  const auto expect = [](auto& engine, nn::Module& expected) {
    const auto scope = engine.gathered();
    const auto found = engine.model().named_parameters();
    for (const auto& parameter : expected.named_parameters()) {
      EXPECT_TRUE(torch::allclose(*found.find(parameter.key()), parameter.value(), 1e-5, 1e-6))
          << parameter.key();
    }
  };
  expect(pair.a, *one);
  expect(pair.b, *other);
}

// One rank fails in a pass and gives up; the others go on until they hear of it.
std::string failed_step(Pair& pair, bool fails, std::int64_t at, Fails how, bool turned) {
  return message_of<StepGivenUp>([&] {
    for (std::int64_t pass = 0; pass < 3; ++pass) {
      if (fails && pass == at && how == Fails::kForward) {
        give_up("no room", {&pair.a, &pair.b});
      }
      const Tensor loss = pair.loss(0, pass);
      if (fails && pass == at) {
        if (how == Fails::kSecondLoss) {
          backward(loss * 0.5, {&pair.a, &pair.b}, {.more = true, .retain_graph = true});
        }
        // In the middle: gradients of `b` have come, and none of `a`.
        const Tensor between = pair.one->forward(input_of(0, 0));
        between.register_hook([](const Tensor&) -> Tensor { throw std::bad_alloc(); });
        EXPECT_THROW(
            backward(pair.other->forward(between).pow(2).mean() + loss, {&pair.a, &pair.b}),
            std::bad_alloc);
        (turned ? pair.a : pair.b).give_up("no room");
      }
      backward(loss, {&pair.a, &pair.b});
      pair.end(turned);
    }
  });
}

TEST(SharedPasses, ThatFailGiveUpAllEnginesOnAllRanks) {
  engine_worlds::everywhere(1, [](std::shared_ptr<World> world, const EngineOptions& options) {
    for (const bool turned : {false, true}) {  // the order in which steps are ended
      Pair pair(world, options, /*uneven=*/false);
      for (std::int64_t at = 0; at < 3; ++at) {
        for (const Fails how : {Fails::kForward, Fails::kBackward, Fails::kSecondLoss}) {
          SCOPED_TRACE(detail::concat("pass ", at, ", ", static_cast<int>(how), ", ", turned));
          const int rank = static_cast<int>(at) % world->size();
          const std::string message = failed_step(pair, world->rank() == rank, at, how, turned);
          EXPECT_TRUE(contains(message, detail::concat("rank ", rank, " gave up step 1: no room")))
              << message;
          EXPECT_EQ(pair.a.steps(), 0);
          EXPECT_EQ(pair.b.steps(), 0);
        }
      }
      pair.take_step(0, turned);
      pair.take_step(1, !turned);
      expect_trained(pair, world->size(), 2, false);
    }
  });
}

// Where one engine has three steps in one of the other's, those that were taken stay.
TEST(SharedPasses, ThatFailEndTheStepsThatAreUnderWay) {
  engine_worlds::everywhere(1, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Pair pair(world, options, /*uneven=*/true);
    pair.take_step(0, /*turned=*/true);
    const int last = world->size() - 1;
    const std::string message =
        failed_step(pair, world->rank() == last, /*at=*/0, Fails::kBackward, /*turned=*/true);
    EXPECT_TRUE(contains(message, detail::concat("rank ", last, " gave up step"))) << message;
    EXPECT_EQ(pair.a.steps(), 1);
    EXPECT_EQ(pair.b.steps(), 3);
    expect_trained(pair, world->size(), 1, true);
    pair.take_step(1, true);
    expect_trained(pair, world->size(), 2, true);
  });
}

TEST(SharedPasses, OfAStepThatIsEndedEarlyAreEndedForAll) {
  engine_worlds::everywhere(1, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Pair pair(world, options, /*uneven=*/false);
    for (const bool turned : {false, true}) {
      backward(pair.loss(0, 0), {&pair.a, &pair.b});
      pair.end(turned);
      auto& one = turned ? pair.b : pair.a;
      auto& other = turned ? pair.a : pair.b;
      one.drop();
      const std::string message = message_of<ConfigError>([&] {
        backward(pair.loss(0, 1), {&pair.a, &pair.b});
      });
      EXPECT_TRUE(contains(message, "flush() or drop()")) << message;
      other.drop();
    }
    pair.take_step(0, false);
    backward(pair.loss(1, 0), {&pair.a, &pair.b});
    pair.end(false);
    EXPECT_TRUE(pair.b.flush());
    EXPECT_TRUE(pair.a.flush());
    EXPECT_EQ(pair.a.steps(), 2);
    EXPECT_EQ(pair.b.steps(), 2);
  });
}

TEST(SharedPasses, AreNotGivenUpWhereAnEngineOfThemHasAllItNeeds) {
  engine_worlds::everywhere(1, [](std::shared_ptr<World> world, const EngineOptions& options) {
    Pair pair(world, options, /*uneven=*/true);
    backward(pair.loss(0, 0), {&pair.a, &pair.b});
    const std::string message = message_of<ConfigError>([&] { pair.a.give_up("late"); });
    EXPECT_TRUE(contains(message, "call step() of that one first")) << message;
    pair.end(false);
    EXPECT_EQ(pair.b.steps(), 1);
    EXPECT_THROW(pair.a.give_up("both"), StepGivenUp);
    pair.take_step(0, false);
    EXPECT_EQ(pair.b.steps(), 4);
    // One that has had a pass of its own since is alone again.
    pair.b.backward(pair.other->forward(input_of(0, 0)).mean());
    pair.b.step();
    EXPECT_EQ(pair.b.steps(), 5);
    EXPECT_THROW(pair.a.give_up("alone"), StepGivenUp);
  });
}

}  // namespace
}  // namespace trireme::shared_passes_test
