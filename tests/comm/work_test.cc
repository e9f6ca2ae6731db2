#include "trireme/comm/work.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::fork_world;
using testing::message_of;
using testing::spawn_world;

TEST(Work, OperationsInFlightFinishInOrder) {
  spawn_world(3, [](World& world) {
    std::vector<std::vector<float>> data;
    std::vector<Work> works;
    for (int i = 0; i < 100; ++i) {  // more than there are slots: issuing makes progress too
      data.emplace_back(1000 * (i % 7 + 1), static_cast<float>(world.rank() + i));
    }
    for (auto& values : data) {
      works.push_back(world.all_reduce(values));
    }
    works.back().wait();
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(works[static_cast<std::size_t>(i)].done()) << i;  // the last is finished: so are all
      EXPECT_EQ(data[static_cast<std::size_t>(i)].back(), static_cast<float>(3 + 3 * i));
    }
  });
}

TEST(Work, DoneMakesProgressWithoutBlocking) {
  fork_world(2, [](World& world) {
    std::vector<double> data(50'000, world.rank() + 1);
    Work work = world.all_reduce(data);
    while (!work.done()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(data[49'999], 3);
    work.wait();  // again is allowed
  });
}

TEST(Work, AHelperThreadMakesProgressAlone) {
  spawn_world(
      2,
      [](World& world) {
        std::vector<float> first(100'000, 1);
        std::vector<float> second(10, 1);
        Work one = world.all_reduce(first);
        Work two = world.all_reduce(second);
        // Nobody calls into the communicator; the result still comes.
        for (int i = 0; i < 3000 && first[99'999] != 2; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          if (one.done()) {
            break;
          }
        }
        two.wait();
        EXPECT_EQ(first[99'999], 2);
        EXPECT_EQ(second[9], 2);
      },
      [](InitOptions& options) { options.progress_thread = true; });
}

TEST(Work, DroppedUnfinishedStillHappens) {
  fork_world(2, [](World& world) {
    const SharedBuffer buffer = world.allocate(400'000);
    const Span data = buffer.span(Dtype::kFloat32, 100'000);
    std::fill_n(reinterpret_cast<float*>(data.bytes()), 100'000, 1.0F);
    static_cast<void>(world.all_reduce(data));
    world.barrier().wait();
    EXPECT_EQ(reinterpret_cast<float*>(data.bytes())[99'999], 2);
  });
}

TEST(Work, NamesTheMissingRankAtTheDeadline) {
  fork_world(3, [](World& world) {
    if (world.rank() == 2) {  // alive, but elsewhere
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      EXPECT_THROW(world.barrier().wait(), CommError);
      return;
    }
    std::vector<float> data(10);
    Work work = world.all_reduce(data);
    const std::string message = message_of<CommError>([&] { work.wait(Milliseconds(500)); });
    EXPECT_NE(message.find("rank 2 (pid"), std::string::npos) << message;
    EXPECT_NE(message.find("all_reduce(sum, float32 x 10)"), std::string::npos) << message;
    // The communicator is finished, and says why.
    EXPECT_NE(message_of<CommError>([&] { world.barrier().wait(); }).find("rank 2"), std::string::npos);
  });
}

TEST(Work, AbortEndsEveryRank) {
  fork_world(3, [](World& world) {
    if (world.rank() == 1) {
      world.abort("the loss is not a number");
      return;
    }
    const std::string message = message_of<CommError>([&] { world.barrier().wait(); });
    EXPECT_NE(message.find("the loss is not a number"), std::string::npos) << message;
    EXPECT_NE(message.find("found by rank 1"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace trireme
