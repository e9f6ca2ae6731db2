// Stale training that is saved and goes on.

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include "average/loose_training.h"
#include "trireme/server/stale_engine.h"
#include "trireme/train/checkpoints.h"

namespace trireme::stale_checkpoints_test {
namespace {

using testing::flat;
using testing::in_loose_world;
using testing::LooseNet;
using testing::same_bits;

// Evaluating changes nothing; saving is where training goes on from, also with what was loaded.
TEST(StaleCheckpoints, GoesOnFromCheckpoints) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("stale-checkpoints-" + std::to_string(getpid()));
  in_loose_world(3, [&](const std::shared_ptr<World>& world) {
    for (const int servers : {0, 1}) {
      const Stale stale{.bound = 2, .servers = servers};
      const std::string path = folder / std::to_string(servers);
      const auto train = [&](auto& engine, int from, int to, bool looks = false) {
        for (int step = from; step < to; ++step) {
          if (engine.computes()) {
            engine.backward(testing::loose_loss(
                [&](const torch::Tensor& x) { return engine.forward(x); }, world->rank(), step, 0));
            engine.step();
          }
          if (looks) {
            engine.with_newest([&] { engine.forward(torch::ones({2, 7})); });
          }
        }
      };
      std::vector<float> expected;
      for (const bool looks : {false, true}) {
        LooseNet model;
        StaleEngine engine(model, AdamW({.lr = 1e-2}), stale, world);
        Checkpoints checkpoints(path, world);
        train(engine, 0, 4, looks);
        if (!looks) {
          checkpoints.save(engine);
          checkpoints.finish();
        } else {
          engine.state();
        }
        train(engine, 4, 9, looks);
        engine.finish();
        if (!looks) {
          expected = flat(model->parameters());
        } else {
          EXPECT_TRUE(same_bits(flat(model->parameters()), expected));
        }
      }
      LooseNet model(99);
      StaleEngine engine(model, AdamW({.lr = 1e-2}), stale, world);
      Checkpoints checkpoints(path, world);
      ASSERT_TRUE(checkpoints.resume(engine).has_value());
      EXPECT_EQ(engine.steps(), 4);
      train(engine, 4, 9);
      engine.finish();
      EXPECT_TRUE(same_bits(flat(model->parameters()), expected));
    }
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::stale_checkpoints_test
