// Training where MPI carries the data: the bits of one plain process, at every stage. Run by
// mpirun; each rank is that one process as well.

#include <cstring>

#include <gtest/gtest.h>

#include "parity/case.h"
#include "support/ranks.h"

namespace trireme {
namespace {

using testing::Case;
using testing::Result;

std::vector<Case> cases() {
  return {{"adamw, attention, clipped",
           testing::make_attention,
           [] { return std::make_unique<AdamW>(AdamWOptions{.lr = 3e-3, .weight_decay = 0.05}); },
           0.5,
           {.unit_bytes = 4096, .bucket_bytes = 2048}},
          {"sgd, tied and unused",
           testing::make_tied_and_unused,
           [] { return std::make_unique<Sgd>(SgdOptions{.lr = 0.05, .momentum = 0.9}); },
           0,
           {.unit_bytes = 1, .bucket_bytes = 1}}};
}

void train(World& world) {
  at::set_num_threads(1);
  const std::shared_ptr<World> shared(std::shared_ptr<void>(), &world);
  for (const Case& item : cases()) {
    const Result expected = testing::train_plainly(item);
    ASSERT_FALSE(expected.empty()) << item.name;
    for (const int stage : {0, 1, 2, 3}) {
      EngineOptions options = item.options;
      options.zero = stage;
      const Result found = testing::train_with_engine(item, options, shared);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0)
          << item.name << ", stage " << stage << ", rank " << world.rank() << " of "
          << world.size();
    }
  }
}

class MpiTrainingTest : public ::testing::TestWithParam<int> {};

TEST_P(MpiTrainingTest, GivesTheBitsOfOneProcess) {
  testing::fork_world(GetParam(), train);
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiTrainingTest, ::testing::Values(2, 3));

}  // namespace
}  // namespace trireme
