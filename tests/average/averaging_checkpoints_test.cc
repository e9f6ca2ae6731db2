// Replicas that are saved in the middle of a phase go on as if nothing had happened.

#include <fstream>

#include <gtest/gtest.h>

#include "average/loose_training.h"
#include "support/processes.h"
#include "trireme/core/error.h"
#include "trireme/train/checkpoints.h"

namespace trireme::averaging_checkpoints_test {
namespace {

using testing::in_loose_world;
using testing::LooseCase;
using testing::LooseReplica;
using testing::message_of;
using testing::same_bits;
using testing::TemporaryFolder;

std::vector<float> read_floats(const std::string& path) {
  const std::string text = testing::read_file(path);
  std::vector<float> values(text.size() / sizeof(float));
  std::memcpy(values.data(), text.data(), values.size() * sizeof(float));
  return values;
}

void write_floats(const std::string& path, const std::vector<float>& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

// Saved in step 5 of 8, two steps after an averaging, by replicas of one rank; loaded by replicas
// of two, at another stage, whose weights began with others.
TEST(AveragingCheckpoints, LocalResumesAsLibTorchGoesOn) {
  const TemporaryFolder folder;
  const LooseCase c{.replicas = 2, .steps = 8, .every = 3};
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    LooseReplica replica(world, c, Local{.steps = 3});
    replica.train(0, 5);
    Checkpoints checkpoints(folder.path(), world);
    checkpoints.save(replica.averaging);
    checkpoints.finish();
  });
  const auto expected = testing::local_reference(c);
  LooseCase halves = c;
  halves.ranks = 2;
  for (const int zero : {0, 2}) {
    in_loose_world(4, [&](const std::shared_ptr<World>& world) {
      LooseReplica replica(world, halves, Local{.steps = 3}, {.zero = zero});
      replica.train(0, 1);
      const auto resumed = Checkpoints(folder.path(), world).resume(replica.averaging);
      ASSERT_TRUE(resumed);
      EXPECT_EQ(resumed->step, 5);
      EXPECT_EQ(replica.averaging.use().averagings, 1);
      replica.train(5, 8);
      EXPECT_EQ(replica.averaging.use().averagings, 2);
      EXPECT_TRUE(same_bits(replica.weights(),
                            expected[static_cast<std::size_t>(replica.replicas.number())]));
    });
  }
  // What is under the plain names is the mean.
  LooseCase saved = c;
  saved.steps = 5;
  std::vector<torch::Tensor> apart;
  for (const std::vector<float>& each : testing::local_reference(saved)) {
    apart.push_back(torch::tensor(each));
  }
  in_loose_world(1, [&](const std::shared_ptr<World>& world) {
    testing::LooseNet model(77);
    Engine engine(model, Sgd({.lr = 1}), {}, world);
    load_checkpoint_weights(folder.path() + "/step-00000005", engine);
    EXPECT_TRUE(
        same_bits(testing::flat(model->parameters()), testing::flat({testing::mean_of(apart)})));
  });
}

// The others, with what else an engine keeps, against themselves without a break.
TEST(AveragingCheckpoints, ResumesEveryMode) {
  const LooseCase c{.replicas = 2};
  const AdamW adam({.lr = 1e-2});
  const std::vector<Averaging::Mode> modes = {
      DiLoCo{.steps = 3}, Gossip{.steps = 2}, Gossip{.graph = Gossip::Graph::kRandom}};
  for (std::size_t m = 0; m < modes.size(); ++m) {
    for (const int saved : {4, 6}) {  // 6: right after an averaging
      SCOPED_TRACE(std::to_string(m) + ", saved in step " + std::to_string(saved));
      const TemporaryFolder folder;
      const auto file = [&](const Replicas& replicas) {
        return folder.path() + "/weights-" + std::to_string(replicas.number());
      };
      const EngineOptions options{.ema_decay = 0.5};
      in_loose_world(2, [&](const std::shared_ptr<World>& world) {
        LooseReplica replica(world, c, modes[m], options, &adam);
        replica.train(0, saved);
        Checkpoints checkpoints(folder.path() + "/saved", world);
        checkpoints.save(replica.averaging);
        replica.train(saved, 9);
        checkpoints.finish();
        write_floats(file(replica.replicas), replica.weights());
      });
      LooseCase halves = c;
      halves.ranks = 2;
      in_loose_world(4, [&](const std::shared_ptr<World>& world) {
        EngineOptions other = options;
        other.zero = 3;
        LooseReplica replica(world, halves, modes[m], other, &adam);
        ASSERT_TRUE(Checkpoints(folder.path() + "/saved", world).resume(replica.averaging));
        replica.train(saved, 9);
        EXPECT_TRUE(same_bits(replica.weights(), read_floats(file(replica.replicas))));
      });
    }
  }
}

// Counts what it has seen, by as much as it is told to.
struct CounterImpl : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(7, 3));
  torch::Tensor seen = register_buffer("seen", torch::zeros({2}, torch::kLong));
  std::int64_t by = 0;

  torch::Tensor forward(const torch::Tensor& x) {
    seen += by;
    return layer->forward(x);
  }
};
TORCH_MODULE(Counter);

// No mean can be taken of integers: they are each replica's own, whether it is saved while the
// weights are apart or right after an averaging.
TEST(AveragingCheckpoints, IntegerBuffersStayTheReplicasOwn) {
  for (const int saved : {4, 6}) {
    const TemporaryFolder folder;
    const auto in_replicas = [&](int size, const auto& body) {
      in_loose_world(size, [&](const std::shared_ptr<World>& world) {
        Replicas replicas(world, {.ranks = size / 2});
        Counter model;
        model->by = 10 + replicas.number();
        Engine engine(model, Sgd({.lr = 0.125}), {.micro_batches = 2}, replicas.mine());
        Averaging averaging(engine, replicas, Local{.steps = 3});
        const auto train = [&](int from, int to) {
          for (int step = from; step < to; ++step) {
            for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
              engine.backward(
                  testing::loose_loss([&](const torch::Tensor& x) { return engine.forward(x); },
                                      replicas.number(),
                                      step,
                                      engine.micro_batch(k)));
              engine.step();
            }
            averaging.step();
          }
        };
        const auto seen = [&] {
          EXPECT_EQ(model->seen[0].item<std::int64_t>(), model->seen[1].item<std::int64_t>());
          return model->seen[1].item<std::int64_t>();
        };
        Checkpoints checkpoints(folder.path(), world);
        body(checkpoints, averaging, train, seen, model->by);
      });
    };
    in_replicas(
        2, [&](auto& checkpoints, auto& averaging, const auto& train, const auto& seen, auto by) {
          train(0, saved);
          EXPECT_EQ(seen(), 2 * saved * by);
          checkpoints.save(averaging);
          checkpoints.finish();
        });
    for (const int size : {2, 4}) {  // a rank of two has half of the micro-batches
      in_replicas(
          size,
          [&](auto& checkpoints, auto& averaging, const auto& train, const auto& seen, auto by) {
            train(0, 1);
            ASSERT_TRUE(checkpoints.resume(averaging));
            EXPECT_EQ(seen(), 2 * saved * by) << saved << ", " << size << " ranks";
            train(saved, 9);
            EXPECT_EQ(seen(), 2 * saved * by + 4 / size * (9 - saved) * by);
          });
    }
  }
}

TEST(AveragingCheckpoints, RefusesOtherReplicasByName) {
  const TemporaryFolder folder;
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    LooseReplica replica(world, {.replicas = 2}, Local{.steps = 3});
    replica.train(0, 2);
    Checkpoints checkpoints(folder.path(), world);
    checkpoints.save(replica.averaging);
    checkpoints.finish();
    LooseReplica other(world, {.replicas = 2}, Gossip{});
    EXPECT_NE(message_of<ConfigError>([&] {
                checkpoints.resume(other.averaging);
              }).find("saved with averaging local, but this one is gossip"),
              std::string::npos);
    testing::LooseNet model;
    Engine engine(model, Sgd({.lr = 1, .momentum = 0.5}), {}, world);
    EXPECT_NE(message_of<ConfigError>([&] {
                checkpoints.resume(engine);
              }).find("one of 2 replicas, found one engine"),
              std::string::npos);
  });
  in_loose_world(3, [&](const std::shared_ptr<World>& world) {
    LooseReplica replica(world, {.replicas = 3}, Local{.steps = 3});
    const std::string message = message_of<ConfigError>(
        [&] { Checkpoints(folder.path(), world).resume(replica.averaging); });
    EXPECT_NE(message.find("one of 2 replicas, found 3"), std::string::npos) << message;
    replica.train(0, 3);  // nothing has changed
  });
}

// Post-local SGD: what all ranks have trained together is where the replicas begin.
TEST(AveragingCheckpoints, GoesOnFromOneEngine) {
  const TemporaryFolder folder;
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    testing::LooseNet model;
    Engine engine(model, Sgd({.lr = 0.125, .momentum = 0.5}), {.zero = 2}, world);
    for (int step = 0; step < 3; ++step) {
      engine.backward(testing::loose_loss(
          [&](const torch::Tensor& x) { return engine.forward(x); }, world->rank(), step, 0));
      engine.step();
    }
    Checkpoints checkpoints(folder.path(), world);
    checkpoints.save(engine);
    checkpoints.finish();
    const std::vector<float> together = [&] {
      auto scope = engine.gathered();
      return testing::flat(model->parameters());
    }();
    for (const Averaging::Mode& mode :
         {Averaging::Mode(Local{.steps = 2}),
          Averaging::Mode(DiLoCo{.steps = 2, .outer = {.lr = 1, .momentum = 0}})}) {
      LooseReplica replica(world, {.replicas = 2}, mode);
      ASSERT_TRUE(checkpoints.resume(replica.averaging));
      EXPECT_EQ(replica.averaging.steps(), 3);
      EXPECT_TRUE(same_bits(replica.weights(), together));
      replica.train(3, 5);  // from there, not from what it was made with
      const std::vector<float> after = replica.weights();
      EXPECT_FALSE(same_bits(after, together));
      for (std::size_t i = 0; i < after.size(); ++i) {
        EXPECT_NEAR(after[i], together[i], 0.2);
      }
    }
  });
}

}  // namespace
}  // namespace trireme::averaging_checkpoints_test
