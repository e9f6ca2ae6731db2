// Memory that ranks read of each other, without their help.

#include "trireme/comm/window.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/machines.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::fork_world;

constexpr std::size_t kBytes = (8 << 20) + 3;

// Byte `at` of what `rank` exposes.
std::byte expected(int rank, std::size_t at) {
  return static_cast<std::byte>(at * 2654435761U >> 13 ^ static_cast<std::size_t>(rank) * 37);
}

std::vector<std::byte> memory_of(int rank) {
  std::vector<std::byte> memory(kBytes);
  for (std::size_t at = 0; at < kBytes; ++at) {
    memory[at] = expected(rank, at);
  }
  return memory;
}

// Reads at random places, of every length that takes another way.
void read_around(World& world, Window& window, unsigned seed) {
  std::mt19937 random(seed);
  constexpr std::array<std::size_t, 5> kLengths = {0, 1, 4097, 100'000, 3'000'001};
  for (int i = 0; i < 40; ++i) {
    const std::size_t bytes = kLengths[random() % kLengths.size()];
    const std::size_t offset = i == 0 ? kBytes - bytes : random() % (kBytes - bytes + 1);
    const int rank = static_cast<int>(random() % static_cast<unsigned>(world.size()));
    std::vector<std::byte> found(bytes + 1, std::byte{0xA5});
    window.read(rank, offset, bytes, found.data());
    for (std::size_t k = 0; k < bytes; ++k) {
      ASSERT_EQ(found[k], expected(rank, offset + k)) << "byte " << offset + k << " of " << rank;
    }
    ASSERT_EQ(found[bytes], std::byte{0xA5}) << "more was written than was asked for";
  }
}

bool is_stopped(pid_t pid) {
  return testing::read_file(detail::concat("/proc/", pid, "/stat")).find(") T ") !=
         std::string::npos;
}

class WindowTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string layout = GetParam();
    if (const auto reason = layout == "ucx" ? std::nullopt : testing::Machines::unavailable()) {
      GTEST_SKIP() << *reason;
    }
    setenv("TRIREME_TEST_LAYOUT", GetParam(), 1);
  }
};

TEST_P(WindowTest, IsReadByTwoThreadsOfEveryRankWhileTheOthersCompute) {
  fork_world(3, [](World& world) {
    const std::vector<std::byte> memory = memory_of(world.rank());
    const auto window = world.expose(memory.data(), memory.size());
    const auto seed = static_cast<unsigned>(world.rank() * 2);
    std::thread other([&] { read_around(world, *window, seed); });
    // This thread's collectives go on beside the readers of both threads.
    std::vector<float> data(50'000, 1);
    for (int i = 0; i < 10; ++i) {
      world.all_reduce(data, ReduceOp::kMax).wait();
    }
    read_around(world, *window, seed + 1);
    other.join();
    world.barrier().wait();  // nobody reads any more
  });
}

TEST_P(WindowTest, ARankThatDoesNothingIsReadAllTheSame) {
  // Rank 1 is told that it was read without the communicator, in which it might help.
  void* const shared = mmap(nullptr,
                            sizeof(std::atomic<bool>),
                            PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS,
                            -1,
                            0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const was_read = new (shared) std::atomic<bool>(false);
  fork_world(2, [&](World& world) {
    const std::vector<std::byte> memory = memory_of(world.rank());
    const auto window = world.expose(memory.data(), memory.size());
    if (world.rank() == 0) {
      read_around(world, *window, 7);
      *was_read = true;
    } else {
      EXPECT_TRUE(testing::comes_true([&] { return was_read->load(); }));
    }
    world.barrier().wait();
  });
  munmap(shared, sizeof(std::atomic<bool>));
}

TEST_P(WindowTest, ADeadlineThatNeverComesIsNoneThatHasPassed) {
  fork_world(
      2,
      [](World& world) {
        const std::vector<std::byte> memory = memory_of(world.rank());
        const auto window = world.expose(memory.data(), memory.size());
        read_around(world, *window, 3);
        world.barrier().wait();
      },
      [](InitOptions& options) { options.timeout = Milliseconds::max(); });
}

// Rank 2 does not answer: nothing can be read any more, and that is nobody else's fault.
TEST_P(WindowTest, ARankThatDoesNotAnswerIsNamedByLaterReadsOfOthersToo) {
  fork_world(
      3,
      [](World& world) {
        const std::vector<std::byte> memory = memory_of(world.rank());
        const auto window = world.expose(memory.data(), memory.size());
        const std::vector<std::int64_t> mine = {getpid()};
        std::vector<std::int64_t> pids(3);
        world.all_gather(mine, pids).wait();
        if (world.rank() == 2) {
          raise(SIGSTOP);
          return;
        }
        const Deadline patience(std::chrono::seconds(30));
        const auto wait_while = [&](const auto& condition) {
          while (condition() && !patience.passed()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        };
        if (world.rank() == 1) {
          wait_while([&] { return kill(static_cast<pid_t>(pids[0]), 0) == 0; });
          kill(static_cast<pid_t>(pids[2]), SIGCONT);
          return;
        }
        wait_while([&] { return !is_stopped(static_cast<pid_t>(pids[2])); });
        std::byte found{};
        for (const int rank : {2, 1}) {
          try {
            window->read(rank, 0, 1, &found);
            ADD_FAILURE() << "rank " << rank << " was read";
          } catch (const CommError& error) {
            EXPECT_EQ(error.peer(), 2) << error.what();
            EXPECT_EQ(error.reason(), CommError::Reason::kTimeout) << error.what();
          }
        }
      },
      [](InitOptions& options) { options.timeout = std::chrono::seconds(4); });
}

TEST_P(WindowTest, AnEmptyOneCanBeExposed) {
  fork_world(2, [](World& world) {
    // Only rank 1 has something.
    const std::vector<std::byte> memory = memory_of(1);
    const bool has = world.rank() == 1;
    const auto window = world.expose(has ? memory.data() : nullptr, has ? kBytes : 0);
    std::byte found{};
    window->read(1, 1234, 1, &found);
    EXPECT_EQ(found, expected(1, 1234));
    window->read(0, 0, 0, nullptr);
    world.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         WindowTest,
                         ::testing::Values("ucx", "machines:2"),
                         [](const auto& test) {
                           return test.param == std::string("ucx") ? "ucx" : "machines";
                         });

// A rank that exposes memory and meets its end.
class LostWindowTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TRIREME_TEST_LAYOUT", "ucx", 1); }
};

TEST_F(LostWindowTest, ReadingAKilledRankThrows) {
  const std::string job = testing::unique_job();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 2; ++rank) {
    pids.push_back(testing::fork_rank(rank, [&](int self) {
      const auto world = init(testing::options_for(job, self, 2));
      const std::vector<std::byte> memory = memory_of(self);
      const auto window = world->expose(memory.data(), memory.size());
      world->barrier().wait();
      if (self == 1) {
        std::vector<std::byte> found(1);
        window->read(0, 0, 1, found.data());
        raise(SIGKILL);
      }
      const auto start = std::chrono::steady_clock::now();
      std::vector<std::byte> found(kBytes);
      bool thrown = false;
      // Some reads may still come through.
      while (!thrown && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
        try {
          window->read(1, 0, kBytes, found.data());
        } catch (const CommError& error) {
          thrown = true;
          EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied);
          EXPECT_EQ(error.peer(), 1);
          const std::string message = error.what();
          EXPECT_NE(message.find("rank 0 could not read"), std::string::npos) << message;
          EXPECT_NE(message.find("rank 1 (pid "), std::string::npos) << message;
        }
      }
      EXPECT_TRUE(thrown);
      // So does every later one, at once.
      EXPECT_THROW(window->read(1, 0, 10, found.data()), CommError);
    }));
  }
  EXPECT_EQ(testing::wait_for(pids[0]), 0);
  EXPECT_EQ(testing::wait_for(pids[1]), SIGKILL);
}

bool has_ended(pid_t pid) {
  const std::string stat = testing::read_file(detail::concat("/proc/", pid, "/stat"));
  return stat.empty() || stat.find(") Z ") != std::string::npos;
}

// Rank 2 is killed, rank 1 finds that and ends, and rank 0 only notices when it reads rank 1.
TEST_F(LostWindowTest, ReadingARankThatAnotherLossHasEndedNamesTheFirst) {
  const std::string job = testing::unique_job();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) {
    pids.push_back(testing::fork_rank(rank, [&](int self) {
      const auto world = init(testing::options_for(job, self, 3));
      const std::vector<std::byte> memory = memory_of(self);
      const auto window = world->expose(memory.data(), memory.size());
      const std::vector<std::int32_t> own = {getpid()};
      std::vector<std::int32_t> all(3);
      world->all_gather(own, all).wait();
      if (self == 2) {
        raise(SIGKILL);
      }
      if (self == 1) {
        EXPECT_THROW(world->barrier().wait(), CommError);
        return;
      }
      for (int i = 0; i < 2000 && !has_ended(all[1]); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      std::vector<std::byte> found(1);
      try {
        window->read(1, 0, 1, found.data());
        ADD_FAILURE() << "a rank that has ended answered";
      } catch (const CommError& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.peer(), 2) << message;
        EXPECT_NE(message.find("rank 0 could not read"), std::string::npos) << message;
        EXPECT_NE(message.find(detail::concat("rank 2 (pid ", all[2])), std::string::npos)
            << message;
      }
      EXPECT_THROW(world->barrier().wait(), CommError);
    }));
  }
  EXPECT_EQ(testing::wait_for(pids[0]), 0);
  EXPECT_EQ(testing::wait_for(pids[1]), 0);
  EXPECT_EQ(testing::wait_for(pids[2]), SIGKILL);
}

TEST_F(LostWindowTest, AnAnswerThatWasGivenUpDoesNotComeLater) {
  const std::string job = testing::unique_job();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 2; ++rank) {
    pids.push_back(testing::fork_rank(rank, [&](int self) {
      InitOptions options = testing::options_for(job, self, 2);
      options.timeout = std::chrono::seconds(2);
      const auto world = init(options);
      const std::vector<std::byte> memory = memory_of(self);
      const auto window = world->expose(memory.data(), memory.size());
      const std::vector<std::int32_t> own = {getpid()};
      std::vector<std::int32_t> all(2);
      world->all_gather(own, all).wait();
      if (self == 1) {
        raise(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        _exit(0);
      }
      while (!is_stopped(all[1])) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::vector<std::byte> found(kBytes, std::byte{0xA5});
      try {
        window->read(1, 0, kBytes, found.data());
        ADD_FAILURE() << "a stopped rank answered";
      } catch (const CommError& error) {
        EXPECT_EQ(error.reason(), CommError::Reason::kTimeout);
        EXPECT_EQ(error.peer(), 1);
        EXPECT_NE(std::string(error.what()).find("no answer in 2 s"), std::string::npos)
            << error.what();
      }
      kill(all[1], SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_EQ(std::count(found.begin(), found.end(), std::byte{0xA5}),
                static_cast<std::ptrdiff_t>(kBytes));
      EXPECT_THROW(window->read(1, 0, 1, found.data()), CommError);
    }));
  }
  EXPECT_EQ(testing::wait_for(pids[0]), 0);
  EXPECT_EQ(testing::wait_for(pids[1]), 0);
}

}  // namespace
}  // namespace trireme
