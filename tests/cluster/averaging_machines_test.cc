// Replicas whose engines divide their state inside machines.

#include <gtest/gtest.h>

#include "average/loose_training.h"
#include "trireme/core/error.h"

namespace trireme::averaging_machines_test {
namespace {

using testing::in_loose_world;
using testing::LooseCase;
using testing::LooseReplica;
using testing::message_of;

// Inside one machine, its ranks are all there are: the division is the same.
TEST(AveragingMachines, DiLoCoOfAMachineEachHasTheBitsOfAnyDivision) {
  const LooseCase c{.replicas = 2, .ranks = 2, .steps = 5, .every = 2};
  in_loose_world(4, [&](const std::shared_ptr<World>& world) {
    const auto trained = [&](int ranks, const EngineOptions& options) {
      LooseCase here = c;
      here.ranks = ranks;
      LooseReplica replica(world, here, DiLoCo{.steps = 2}, options);
      EXPECT_EQ(replica.replicas.count(), 2);
      EXPECT_TRUE(replica.replicas.mine()->one_machine());
      replica.train(0, c.steps);
      return replica.weights();
    };
    const auto expected = trained(2, {});
    for (const int zero : {1, 2, 3}) {
      EXPECT_TRUE(testing::same_bits(
          trained(ReplicaOptions::kMachine, {.zero = zero, .shard_group = ShardGroup::kMachine}),
          expected))
          << zero;
    }
  });
}

// Three ranks on each machine: only the second replica of two has ranks on both. All hear of it.
TEST(AveragingMachines, DiLoCoAcrossMachinesIsRefusedByEveryone) {
  in_loose_world(6, [](const std::shared_ptr<World>& world) {
    const std::string message = message_of<ConfigError>([&] {
      LooseReplica(world,
                   {.replicas = 3, .ranks = 2},
                   DiLoCo{.steps = 2},
                   {.zero = 1, .shard_group = ShardGroup::kMachine});
    });
    EXPECT_NE(message.find("DiLoCo: expected EngineOptions::shard_group kWorld"), std::string::npos)
        << message;
  });
}

}  // namespace
}  // namespace trireme::averaging_machines_test
