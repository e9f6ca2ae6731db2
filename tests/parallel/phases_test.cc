// What may be called in which phase of a step is the same on all ranks, also on those that have no
// micro-batch in it.

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::phases_test {
namespace {

namespace nn = torch::nn;
using testing::fork_ranks;
using testing::message_of;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

TEST(Phases, AfterTheSumOnlyWhatEndsTheStepIsAllowedOnAnyRank) {
  in_world(2, [](std::shared_ptr<World> world) {
    nn::Linear model(6, 2);
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = 2, .micro_batches = 1}, world);
    for (int step = 0; step < 2; ++step) {
      if (world->rank() == 0) {
        engine.backward(engine.forward(torch::ones({3, 6})).pow(2).mean());
      }
      EXPECT_GT(engine.clip_grad_norm(1e3), 0);
      const std::function<void()> refused[] = {
          [&] { (void)engine.state(); },
          [&] {
            engine.deal({1, 0});
          },
          [&] { (void)engine.gathered(); },
          [&] { engine.join(); },
          [&] { engine.unwrap(); },
          [&] { engine.restore([](const StateView&) {}); },
      };
      for (const auto& call : refused) {
        const std::string message = message_of<ConfigError>(call);
        EXPECT_TRUE(contains(message, "in the middle of a step")) << message;
      }
      EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.set_learning_rate(1); }),
                           "compared their rates"));
      EXPECT_TRUE(engine.grad("bias").defined());
      EXPECT_TRUE(engine.step());
    }
    EXPECT_EQ(engine.steps(), 2);
  });
}

TEST(Phases, InAScopeNothingOfAStepIsAllowedOnAnyRank) {
  in_world(2, [](std::shared_ptr<World> world) {
    nn::Linear model(6, 2);
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = 1, .micro_batches = 1}, world);
    const bool has = world->rank() == 0;
    auto scope = engine.gathered();
    const std::string expected = "gathered() scope is open";
    for (const auto& call : std::vector<std::function<void()>>{[&] { engine.flush(); },
                                                               [&] { engine.join(); },
                                                               [&] { engine.give_up("none"); },
                                                               [&] { engine.unwrap(); },
                                                               [&] { (void)engine.state(); },
                                                               [&] { (void)engine.gathered(); }}) {
      const std::string message = message_of<ConfigError>(call);
      // A rank without micro-batches has nothing to give up in the first place.
      EXPECT_TRUE(contains(message, expected) || contains(message, "nothing to give")) << message;
    }
    // These ask for backward() first, where there is one.
    for (const auto& call :
         std::vector<std::function<void()>>{[&] { engine.step(); },
                                            [&] { engine.clip_grad_norm(1); },
                                            [&] { (void)engine.grad("bias"); }}) {
      const std::string message = message_of<ConfigError>(call);
      EXPECT_TRUE(contains(message, has ? "without backward()" : expected)) << message;
    }
    engine.deal({0, 1});  // changes the next step, not this one
    scope.close();
    if (world->rank() == 1) {
      engine.backward(engine.forward(torch::ones({3, 6})).pow(2).mean());
    }
    EXPECT_TRUE(engine.step());
  });
}

// A hook that calls the engine is refused before anything has happened, and backward goes on.
TEST(Phases, InBackwardTheEngineIsNotCalledAgain) {
  in_world(2, [](std::shared_ptr<World> world) {
    nn::Linear model(6, 2);
    Engine engine(
        model, Sgd({.lr = 0.1}), {.zero = 1, .micro_batches = 4, .ema_decay = 0.5}, world);
    const at::Tensor before = model->weight.clone();
    for (int k = 0; k < 2; ++k) {
      const at::Tensor output = engine.forward(torch::ones({3, 6}));
      std::vector<std::string> messages;
      output.register_hook([&](const at::Tensor&) {
        for (const auto& call : std::vector<std::function<void()>>{
                 [&] { engine.flush(); },
                 [&] { engine.step(); },
                 [&] { engine.give_up("none"); },
                 [&] {
                   engine.backward(engine.forward(torch::ones({3, 6})).mean());
                 },
                 [&] { (void)engine.average("bias"); },
                 [&] { (void)engine.state(); },
                 [&] { engine.join(); }}) {
          messages.push_back(message_of<ConfigError>(call));
        }
      });
      engine.backward(output.sum());
      EXPECT_EQ(messages.size(), 7U);
      for (const std::string& message : messages) {
        EXPECT_TRUE(contains(message, "inside of its own backward()")) << message;
      }
      EXPECT_EQ(engine.step(), k == 1);
    }
    // Every micro-batch has 3 ones for each element of the weight.
    EXPECT_TRUE(torch::allclose(model->weight, before - 0.1 * 3));
  });
}

TEST(Phases, AnEngineThatIsHalfLoadedCanOnlyBeUnwrapped) {
  in_world(2, [](std::shared_ptr<World> world) {
    nn::Linear model(6, 2);
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = 3}, world);
    EXPECT_ANY_THROW(engine.restore([&](const StateView&) {
      if (world->rank() == 1) {
        throw std::runtime_error("a disk fails");
      }
    }));
    for (const auto& call : std::vector<std::function<void()>>{[&] { engine.flush(); },
                                                               [&] { engine.give_up("none"); },
                                                               [&] { engine.join(); },
                                                               [&] { (void)engine.state(); }}) {
      const std::string message = message_of<ConfigError>(call);
      EXPECT_TRUE(contains(message, "half loaded")) << message;
    }
    engine.unwrap();
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.unwrap(); }), "already"));
  });
}

}  // namespace
}  // namespace trireme::phases_test
