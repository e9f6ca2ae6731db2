// The counters in the control memory are 32 bits wide: what happens when they wrap around. They
// begin so close to 2^32 here that each does so after a few operations.

#include <algorithm>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "comm/shm/control.h"
#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme {
namespace {

using detail::index;

// How many steps before 2^32 the counters begin. Operations, phases, windows and fragments count at
// different speeds, so that they wrap around in different moments; 1 wraps with the first of each.
class WrapAround : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  WrapAround() {
    setenv(detail::kEnvFirstCount, std::to_string(std::uint32_t{0} - GetParam()).c_str(), 1);
  }
  ~WrapAround() override { unsetenv(detail::kEnvFirstCount); }

  static void with_small_windows(InitOptions& options) {
    options.stage_bytes = 16 << 10;
    options.kernel_copy = "off";  // the stage has the most counters
  }
};

std::vector<std::int64_t> input(int rank, std::size_t numel, int turn) {
  std::vector<std::int64_t> data(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    data[i] = static_cast<std::int64_t>(i) * 7 + rank * 1000 + turn;
  }
  return data;
}

// One of each kind of memory and way; `turn` makes all values different.
void check_collectives(World& world, const SharedBuffer& buffer, int turn) {
  const int ranks = world.size();
  for (const std::size_t numel : {std::size_t{5}, std::size_t{9'001}}) {
    const auto sum = [&](std::size_t i) {
      return ranks * (static_cast<std::int64_t>(i) * 7 + turn) + 1000 * ranks * (ranks - 1) / 2;
    };
    auto sums = input(world.rank(), numel, turn);
    const Span shared = buffer.span(Dtype::kInt64, static_cast<std::int64_t>(numel));
    auto* values = reinterpret_cast<std::int64_t*>(shared.bytes());
    std::copy(sums.begin(), sums.end(), values);
    world.all_reduce(sums).wait();
    world.all_reduce(shared).wait();
    for (std::size_t i = 0; i < numel; ++i) {
      ASSERT_EQ(sums[i], sum(i)) << "turn " << turn << ", element " << i;
      ASSERT_EQ(values[i], sum(i)) << "shared, turn " << turn << ", element " << i;
    }
    std::vector<std::int64_t> all(numel * index(ranks));
    world.all_gather(input(world.rank(), numel, turn), all).wait();
    for (int peer = 0; peer < ranks; ++peer) {
      const auto begin = all.begin() + static_cast<std::int64_t>(numel) * peer;
      ASSERT_EQ((std::vector<std::int64_t>(begin, begin + static_cast<std::int64_t>(numel))),
                input(peer, numel, turn))
          << "turn " << turn;
    }
  }
}

TEST_P(WrapAround, CollectivesGoOn) {
  testing::fork_world(
      3,
      [](World& world) {
        const SharedBuffer buffer = world.allocate(9'001 * sizeof(std::int64_t));
        for (int turn = 0; turn < 30; ++turn) {
          check_collectives(world, buffer, turn);
        }
        // Buffers have numbers too.
        for (int i = 0; i < 10; ++i) {
          check_collectives(world, world.allocate(9'001 * sizeof(std::int64_t)), i);
        }
      },
      with_small_windows);
}

// More in flight than there are slots, so that issuing waits for the oldest.
TEST_P(WrapAround, ManyInFlightGoOn) {
  testing::spawn_world(
      3,
      [](World& world) {
        std::vector<std::vector<std::int64_t>> data;
        std::vector<Work> works;
        for (int turn = 0; turn < 150; ++turn) {
          data.push_back(input(world.rank(), turn % 3 == 0 ? 5'000 : 7, turn));
        }
        for (auto& values : data) {
          works.push_back(world.all_reduce(values));
        }
        for (Work& work : works) {
          work.wait();
        }
        for (int turn = 0; turn < 150; ++turn) {
          const auto& sums = data[index(turn)];
          for (std::size_t i = 0; i < sums.size(); ++i) {
            ASSERT_EQ(sums[i], 3 * (static_cast<std::int64_t>(i) * 7 + turn) + 3000);
          }
        }
      },
      with_small_windows);
}

TEST_P(WrapAround, MessagesGoOn) {
  testing::fork_world(
      3,
      [](World& world) {
        const int right = (world.rank() + 1) % 3;
        const int left = (world.rank() + 2) % 3;
        // A ring in which one message takes all of the mailbox, and pieces of the next must wait.
        for (int turn = 0; turn < 12; ++turn) {
          const std::size_t numel = turn % 4 == 3 ? 200'001 : 11;
          const auto outgoing = input(world.rank(), numel, turn);
          std::vector<std::int64_t> incoming(numel);
          Work receiving = world.recv(incoming, left);
          world.send(outgoing, right).wait();
          receiving.wait();
          ASSERT_EQ(incoming, input(left, numel, turn)) << "turn " << turn;
        }
      },
      with_small_windows);
}

// A mistake behind the wrap is found as elsewhere, and operations have the numbers that they would
// have had anyway.
TEST_P(WrapAround, MistakesAreNamedAsElsewhere) {
  testing::fork_world(
      2,
      [](World& world) {
        for (int i = 0; i < 41; ++i) {
          std::vector<std::int64_t> data(3);
          world.all_reduce(data).wait();
        }
        std::vector<float> data(world.rank() == 0 ? 10 : 11);
        const std::string message =
            testing::message_of<CommError>([&] { world.all_reduce(data).wait(); });
        for (const char* part : {"rank 0: #42 all_reduce(sum, float32 x 10)",
                                 "rank 1: #42 all_reduce(sum, float32 x 11)"}) {
          EXPECT_NE(message.find(part), std::string::npos) << message;
        }
        EXPECT_NE(message.find("last operations: rank 0 #42 all_reduce"), std::string::npos)
            << message;
      },
      with_small_windows);
}

// Nobody has called anything: not even where the number of the first operation is 0.
TEST_P(WrapAround, WhoHasDoneNothingIsSaidToHaveDoneNothing) {
  testing::fork_world(2, [](World& world) {
    if (world.rank() == 0) {
      const std::string message =
          testing::message_of<CommError>([&] { world.barrier().wait(Milliseconds(300)); });
      for (const char* part : {"#1 barrier()", "rank 0 #1 barrier()", "rank 1 nothing yet"}) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
      }
    } else {
      EXPECT_THROW(
          {
            for (;;) {
              std::this_thread::sleep_for(std::chrono::milliseconds(100));
              world.send(std::vector<float>(1), 1).wait();
              std::vector<float> one(1);
              world.recv(one, 1).wait();
            }
          },
          CommError);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(StepsBefore,
                         WrapAround,
                         ::testing::Values(0U, 1U, 2U, 7U, 33U, 100U),
                         [](const auto& tested) { return std::to_string(tested.param); });

}  // namespace
}  // namespace trireme
