// One training with exact phases and others, in which replicas are averaged: against plain LibTorch
// in one process, with which it has the same bits.

#include "trireme/average/phased_engine.h"

#include <gtest/gtest.h>

#include "average/loose_training.h"
#include "support/processes.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/train/checkpoints.h"

namespace trireme::phased_engine_test {
namespace {

using testing::in_loose_world;
using testing::kLooseMicroBatches;
using testing::kLooseRate;
using testing::loose_loss;
using testing::LooseNet;
using testing::LooseNetImpl;
using testing::message_of;
using testing::same_bits;
using testing::TemporaryFolder;

constexpr int kReplicas = 2;
constexpr int kSteps = 12;
constexpr double kMomentum = 0.5;

const std::vector<SyncPhase>& phases() {
  static const std::vector<SyncPhase> all = {
      {0, Exact{}}, {3, Local{.steps = 2}}, {6, Local{.steps = 3}}, {8, Exact{}}, {10, Local{}}};
  return all;
}

// By LibTorch, after every step: of all replicas, which are alike in exact phases. Averages where
// `phases` say so, and at the end of a phase, there the momenta, too.
std::vector<std::vector<std::vector<float>>> reference(const std::vector<SyncPhase>& phases,
                                                       int steps = kSteps) {
  struct Replica {
    LooseNet model;
    std::vector<torch::Tensor> momenta;
  };
  std::vector<Replica> replicas(kReplicas);
  for (Replica& replica : replicas) {
    for (const torch::Tensor& parameter : replica.model->parameters()) {
      replica.momenta.push_back(torch::zeros_like(parameter));
    }
  }
  const torch::NoGradGuard no_grad;
  const auto backward = [](Replica& with, int replica, int step) {
    for (std::int64_t m = 0; m < kLooseMicroBatches; ++m) {
      const torch::AutoGradMode grad(true);
      loose_loss([&](const torch::Tensor& x) { return with.model->forward(x); }, replica, step, m)
          .backward();
    }
  };
  const auto update = [](Replica& replica, std::int64_t micro_batches) {
    const auto parameters = replica.model->parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].requires_grad()) {
        replica.momenta[p].mul_(kMomentum).add_(parameters[p].grad() / micro_batches);
        torch::Tensor weights = parameters[p];
        weights.sub_(replica.momenta[p] * kLooseRate);
        weights.mutable_grad().reset();
      }
    }
  };
  const auto each_parameter = [&](const auto& together) {
    for (std::size_t p = 0; p < replicas[0].momenta.size(); ++p) {
      if (replicas[0].model->parameters()[p].requires_grad()) {
        std::vector<torch::Tensor> weights;
        std::vector<torch::Tensor> momenta;
        for (Replica& replica : replicas) {
          weights.push_back(replica.model->parameters()[p]);
          momenta.push_back(replica.momenta[p]);
        }
        together(weights, momenta);
      }
    }
  };
  const auto set_all = [](std::vector<torch::Tensor>& all, const torch::Tensor& value) {
    for (torch::Tensor& each : all) {
      each.copy_(value);
    }
  };
  const auto mean = [&] {
    each_parameter([&](auto& weights, auto&) { set_all(weights, testing::mean_of(weights)); });
  };

  std::vector<std::vector<std::vector<float>>> history;
  std::int64_t since = 0;
  for (int step = 0; step < steps; ++step) {
    SyncPhase now;
    SyncPhase next;
    for (const SyncPhase& phase : phases) {
      now = phase.from <= step ? phase : now;
      next = phase.from <= step + 1 ? phase : next;
    }
    const bool exact = std::holds_alternative<Exact>(now.mode);
    if (exact) {  // one model computes all
      for (int replica = 0; replica < kReplicas; ++replica) {
        backward(replicas[0], replica, step);
      }
      update(replicas[0], kReplicas * kLooseMicroBatches);
      each_parameter([&](auto& weights, auto& momenta) {
        set_all(weights, weights[0].clone());
        set_all(momenta, momenta[0].clone());
      });
    } else {
      for (int replica = 0; replica < kReplicas; ++replica) {
        backward(replicas[static_cast<std::size_t>(replica)], replica, step);
        update(replicas[static_cast<std::size_t>(replica)], kLooseMicroBatches);
      }
      if (++since >= std::get<Local>(now.mode).steps) {
        mean();
        since = 0;
      }
    }
    if (!exact && std::holds_alternative<Exact>(next.mode)) {
      mean();
      each_parameter([&](auto&, auto& momenta) { set_all(momenta, testing::mean_of(momenta)); });
      since = 0;
    }
    history.emplace_back();
    for (Replica& replica : replicas) {
      history.back().push_back(testing::flat(replica.model->parameters()));
    }
  }
  return history;
}

struct Training {
  Training(const std::shared_ptr<World>& world,
           int ranks,
           EngineOptions options = {},
           const std::vector<SyncPhase>& of = phases(),
           const Optimizer& optimizer = Sgd({.lr = kLooseRate, .momentum = kMomentum}))
      : model(static_cast<std::uint64_t>(5 + world->rank())),  // rank 0's become everyone's
        engine(
            model,
            optimizer,
            [&] {
              options.micro_batches = kReplicas * kLooseMicroBatches;
              return Phased{.phases = of, .replicas = {.ranks = ranks}, .engine = options};
            }(),
            world) {}

  // `then` after each step, with how many were taken.
  void train(int from, int to, const std::function<void(int)>& then = {}) {
    for (int step = from; step < to; ++step) {
      bool done = false;
      const std::int64_t own = engine.local_micro_batches();
      for (std::int64_t k = 0; k < own; ++k) {
        const std::int64_t m = engine.micro_batch(k);
        engine.backward(loose_loss([&](const torch::Tensor& x) { return engine.forward(x); },
                                   static_cast<int>(m / kLooseMicroBatches),
                                   step,
                                   m % kLooseMicroBatches));
        done = engine.step();
      }
      ASSERT_TRUE(done);
      EXPECT_EQ(engine.steps(), step + 1);
      if (then) {
        then(step + 1);
      }
    }
  }
  std::vector<float> weights() {
    auto scope = engine.engine().gathered();
    std::vector<float> all = testing::flat(model->parameters());
    scope.close();
    return all;
  }
  std::size_t replica() const { return static_cast<std::size_t>(engine.replicas().number()); }

  LooseNet model;
  PhasedEngine<LooseNetImpl> engine;
};

// Of replicas of one and of two ranks, in every step.
TEST(PhasedEngine, IsAPlainLoopOfModelsAtEveryStage) {
  const auto expected = reference(phases());
  ASSERT_FALSE(same_bits(expected[3][0], expected[3][1]));  // replicas have gone apart
  ASSERT_TRUE(same_bits(expected[8][0], expected[8][1]));
  for (const int ranks : {1, 2}) {
    in_loose_world(kReplicas * ranks, [&](const std::shared_ptr<World>& world) {
      for (const int zero : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks each, stage " + std::to_string(zero));
        Training training(world, ranks, {.zero = zero});
        training.train(0, kSteps, [&](int steps) {
          EXPECT_TRUE(same_bits(training.weights(),
                                expected[static_cast<std::size_t>(steps - 1)][training.replica()]))
              << "after step " << steps;
        });
        EXPECT_EQ(training.engine.averaging_use().averagings, 2);
        EXPECT_EQ(to_text(training.engine.mode()), "local:32");
      }
    });
  }
}

// Also with what an engine keeps beside float32 weights: what a run saves and another one loads is
// the same as what goes from rank to rank.
TEST(PhasedEngine, GoesOnAsFromACheckpoint) {
  const AdamW adam({.lr = 1e-2});
  struct Case {
    EngineOptions options;
    const char* name;
  };
  const Case cases[] = {
      {{.zero = 1, .ema_decay = 0.5}, "averages"},
      {{.zero = 2, .precision = Precision::kBFloat16}, "bfloat16"},
      {{.zero = 3, .placement = Placement::kCopied, .round_weights = make_compressor("bf16")},
       "rounded"},
      {{.zero = 2, .compress = make_compressor("int8")}, "compressed"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    in_loose_world(4, [&](const std::shared_ptr<World>& world) {
      Training training(world, 2, c.options, {{0, Exact{}}, {3, Local{.steps = 2}}}, adam);
      training.train(0, 3);
      const std::vector<float> begun = training.weights();
      training.train(3, 6);
      const TemporaryFolder folder;  // of each rank; rank 0's is used
      const std::string path = all_texts(*world, folder.path()).front();
      EngineOptions options = c.options;
      options.micro_batches = kReplicas * kLooseMicroBatches;
      {
        LooseNet model;
        Engine engine(model, adam, options, world);
        for (int step = 0; step < 3; ++step) {
          for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
            const std::int64_t m = engine.micro_batch(k);
            engine.backward(loose_loss([&](const torch::Tensor& x) { return engine.forward(x); },
                                       static_cast<int>(m / kLooseMicroBatches),
                                       step,
                                       m % kLooseMicroBatches));
            engine.step();
          }
        }
        Checkpoints checkpoints(path, world);
        checkpoints.save(engine);
        checkpoints.finish();
        auto scope = engine.gathered();
        EXPECT_TRUE(same_bits(begun, testing::flat(model->parameters())));
        scope.close();
      }
      testing::LooseReplica replicas(
          world, {.replicas = 2, .ranks = 2}, Local{.steps = 2}, c.options, &adam);
      ASSERT_TRUE(Checkpoints(path, world).resume(replicas.averaging));
      replicas.train(3, 6);
      EXPECT_TRUE(same_bits(training.weights(), replicas.weights()));
      world->barrier().wait();
    });
  }
}

// Saved in every phase, and at the ends of some; loaded at another stage by replicas of another
// size.
TEST(PhasedEngine, ResumesInEveryPhase) {
  const auto expected = reference(phases());
  for (const int saved : {2, 3, 5, 7, 8, 9, 11}) {
    SCOPED_TRACE("saved after step " + std::to_string(saved));
    const TemporaryFolder folder;
    in_loose_world(2, [&](const std::shared_ptr<World>& world) {
      Training training(world, 1, {.zero = 1});
      training.train(0, saved);
      Checkpoints checkpoints(folder.path(), world);
      checkpoints.save(training.engine);
      checkpoints.finish();
    });
    in_loose_world(4, [&](const std::shared_ptr<World>& world) {
      Training training(world, 2, {.zero = 2});
      training.train(0, 4);  // in another phase than that which it loads
      ASSERT_TRUE(Checkpoints(folder.path(), world).resume(training.engine));
      EXPECT_EQ(training.engine.steps(), saved);
      training.train(saved, kSteps);
      EXPECT_TRUE(same_bits(training.weights(), expected[kSteps - 1][training.replica()]));
      EXPECT_EQ(training.engine.averaging_use().averagings, 2);
    });
  }
}

// An exact phase saves what an engine saves, and takes up what one has saved.
TEST(PhasedEngine, ExactPhasesAndEnginesLoadEachOthersStates) {
  const auto expected = reference({{0, Exact{}}});
  const TemporaryFolder folder;
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    Training training(world, 1);
    training.train(0, 2);
    {
      Checkpoints checkpoints(folder.path() + "/phased", world);
      checkpoints.save(training.engine);
      checkpoints.finish();
    }
    LooseNet model;
    Engine engine(model,
                  Sgd({.lr = kLooseRate, .momentum = kMomentum}),
                  {.zero = 2, .micro_batches = kReplicas * kLooseMicroBatches},
                  world);
    ASSERT_TRUE(Checkpoints(folder.path() + "/phased", world).resume(engine));
    for (int step = 2; step < 4; ++step) {
      for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
        const std::int64_t m = engine.micro_batch(k);
        engine.backward(loose_loss([&](const torch::Tensor& x) { return engine.forward(x); },
                                   static_cast<int>(m / kLooseMicroBatches),
                                   step,
                                   m % kLooseMicroBatches));
        engine.step();
      }
    }
    auto scope = engine.gathered();
    EXPECT_TRUE(same_bits(testing::flat(model->parameters()), expected[3][0]));
    scope.close();
    {
      Checkpoints of_engine(folder.path() + "/engine", world);
      of_engine.save(engine);
      of_engine.finish();
    }
    // Its fourth step is in a phase of replicas.
    Training resumed(world, 1, {}, {{0, Exact{}}, {4, Local{.steps = 2}}});
    ASSERT_TRUE(Checkpoints(folder.path() + "/engine", world).resume(resumed.engine));
    EXPECT_EQ(to_text(resumed.engine.mode()), "local:2");
    resumed.train(4, 7);
    EXPECT_TRUE(
        same_bits(resumed.weights(),
                  reference({{0, Exact{}}, {4, Local{.steps = 2}}}, 7)[6][resumed.replica()]));
  });
}

// A loop decides, and what it has decided can be done again.
TEST(PhasedEngine, EntersWhatALoopDecides) {
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    Training training(world, 1, {}, {{0, Exact{}}});
    for (std::size_t i = 0; i < phases().size(); ++i) {
      training.engine.enter(phases()[i].mode);
      training.train(static_cast<int>(phases()[i].from),
                     i + 1 < phases().size() ? static_cast<int>(phases()[i + 1].from) : kSteps);
    }
    EXPECT_TRUE(same_bits(training.weights(), reference(phases())[kSteps - 1][training.replica()]));
    const std::vector<SyncPhase> entered = training.engine.entered();
    ASSERT_EQ(entered.size(), phases().size());
    Training again(world, 1, {}, entered);
    again.train(0, kSteps);
    EXPECT_TRUE(same_bits(again.weights(), training.weights()));
  });
}

// The others end where gossip and outer steps have brought them: all replicas together.
TEST(PhasedEngine, EndsEveryModeTogether) {
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    const auto expected = reference({{0, Local{.steps = 3}}, {3, Exact{}}}, 5);
    // As far as three steps of replicas go, DiLoCo with rate 1 and without momentum is local.
    Training outer(
        world, 1, {}, {{0, DiLoCo{.steps = 100, .outer = {.lr = 1, .momentum = 0}}}, {3, Exact{}}});
    outer.train(0, 5);
    EXPECT_TRUE(same_bits(outer.weights(), expected[4][0]));
    // Neighbours that have not met yet, either.
    Training gossip(world, 1, {}, {{0, Gossip{.steps = 100}}, {3, Exact{}}});
    gossip.train(0, 5);
    EXPECT_TRUE(same_bits(gossip.weights(), expected[4][0]));
    // From one to the other, through their mean.
    Training both(world, 1, {}, {{0, Gossip{.steps = 100}}, {3, Local{.steps = 100}}});
    both.train(0, 3);
    EXPECT_TRUE(same_bits(both.weights(), expected[2][0]));
  });
}

// What a loop has entered, and outer optimizers and graphs that two phases have their own of, are
// there when a training is resumed; a plan that has changed is followed.
TEST(PhasedEngine, ResumesWhatWasEnteredWithAllThatItHas) {
  const DiLoCo wide{.steps = 3, .outer = {.lr = 0.7, .momentum = 0.5}};
  const DiLoCo narrow{.steps = 3, .outer = {.lr = 0.25, .momentum = 0.25}};
  const Gossip ring{.steps = 1, .graph = Gossip::Graph::kRing};
  const Gossip exponential{.steps = 1, .graph = Gossip::Graph::kExponential};
  struct Case {
    const char* name;
    std::vector<SyncPhase> plan;
    int at = -1;  // the loop enters `mode` there
    SyncMode mode{};
    int saved = 4;
  };
  const Case cases[] = {
      {"entered at the first step of a phase", {{0, Exact{}}}, 0, Local{.steps = 3}},
      {"entered where the plan enters another", {{0, Exact{}}, {3, Local{}}}, 3, Local{.steps = 2}},
      {"an unplanned outer optimizer", {{0, Exact{}}}, 1, wide},
      {"two outer optimizers", {{0, wide}, {8, narrow}}},
      {"two graphs", {{0, ring}, {8, exponential}}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    const TemporaryFolder folder;
    in_loose_world(4, [&](const std::shared_ptr<World>& world) {
      const auto train = [&](Training& training, int from, int to) {
        for (int step = from; step < to; ++step) {
          if (step == each.at) {
            training.engine.enter(each.mode);
          }
          training.train(step, step + 1);
        }
      };
      const EngineOptions options;
      Training whole(world, 1, options, each.plan);
      train(whole, 0, each.saved);
      Checkpoints checkpoints(folder.path(), world);
      checkpoints.save(whole.engine);
      checkpoints.finish();
      const std::string mode = to_text(whole.engine.mode());
      train(whole, each.saved, kSteps);
      Training resumed(world, 1, options, each.plan);
      ASSERT_TRUE(checkpoints.resume(resumed.engine));
      EXPECT_EQ(to_text(resumed.engine.mode()), mode);
      train(resumed, each.saved, kSteps);
      EXPECT_TRUE(same_bits(resumed.weights(), whole.weights()));
    });
  }
}

TEST(PhasedEngine, RefusesByName) {
  in_loose_world(2, [](const std::shared_ptr<World>& world) {
    const auto refused = [&](const std::vector<SyncPhase>& of, const EngineOptions& options) {
      return message_of<ConfigError>([&] { Training(world, 1, options, of); });
    };
    const std::pair<std::string, std::string> found[] = {
        {refused({}, {}), "of which the first is from step 0, found none"},
        {refused({{2, Exact{}}}, {}), "found one from step 2"},
        {refused({{0, Exact{}}, {5, Local{}}, {5, Exact{}}}, {}), "from step 5 after one from"},
        {refused({{0, Exact{}}, {5, Local{.steps = 0}}}, {}), "expected 1 or more steps"},
        {refused({{0, Exact{}}}, {.compress = make_compressor("sign")}), "sign keeps what"},
        {refused({{0, Exact{}}}, {.shares = {1, 2}}), "EngineOptions::shares"},
        {refused({{0, Exact{}}}, {.prune = {.fraction = 0.5, .end = 9}}), "prune"},
        {message_of<ConfigError>([&] {
           LooseNet model;
           PhasedEngine(model, Sgd({.lr = 1}), {.engine = {.micro_batches = 3}}, world);
         }),
         "2 replicas have as many each, found 3"},
        {message_of<ConfigError>([&] {
           Training(world, 1, {}, {{0, Exact{}}, {world->rank() + 3, Local{}}});
         }),
         "the list of phases differs between ranks"}};
    for (const auto& [message, part] : found) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    Training training(world, 1, {}, {{0, Exact{}}});
    training.train(0, 1);
    const std::string apart =
        message_of<ConfigError>([&] { training.engine.enter(Local{.steps = 2 + world->rank()}); });
    EXPECT_NE(apart.find("the phase differs between ranks"), std::string::npos) << apart;
    training.train(1, 2);  // and goes on as it was
  });
}

// Saved in a mode that nobody has planned here: its state is taken, and the plan is followed.
TEST(PhasedEngine, TakesUpAModeThatItHasNotPlanned) {
  in_loose_world(2, [](const std::shared_ptr<World>& world) {
    Training training(world, 1, {}, {{0, Exact{}}});
    training.train(0, 2);
    const TemporaryFolder folder;
    const std::string path = all_texts(*world, folder.path()).front();
    Training gossip(world, 1, {}, {{0, Gossip{}}});
    gossip.train(0, 1);
    Checkpoints checkpoints(path, world);
    checkpoints.save(gossip.engine);
    checkpoints.finish();
    ASSERT_TRUE(checkpoints.resume(training.engine));
    EXPECT_EQ(to_text(training.engine.mode()), "exact");
    training.train(1, 3);
    world->barrier().wait();
  });
}

}  // namespace
}  // namespace trireme::phased_engine_test
