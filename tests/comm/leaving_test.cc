// Ranks that leave, and what the others make of it: nobody waits for one that is gone, and the one
// that is named is the one that began it.

#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

// In the place of the C library's: a rank can be made to die, or to stop, where it needs shared
// memory.
static bool ends_at_next_memory = false;
static bool stops_at_next_memory = false;
extern "C" int memfd_create(const char* name, unsigned int flags) noexcept {
  if (ends_at_next_memory) {
    _exit(0);
  }
  if (stops_at_next_memory) {
    raise(SIGSTOP);
  }
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

namespace trireme {
namespace {

using testing::fork_world;
using testing::message_of;
using Reason = CommError::Reason;

void rest(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

std::optional<CommError> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return std::nullopt;
}

// Rank 1 dies, rank 0 learns of it in a way of its own and leaves, and only then the others look.
TEST(Leaving, TheDeadAreNamedBeforeThoseWhoLeft) {
  fork_world(4, [](World& world) {
    world.barrier().wait();
    if (world.rank() == 1) {
      _exit(0);
    }
    if (world.rank() == 0) {
      rest(500);
      return;
    }
    rest(1500);
    const auto error = error_of([&] { world.barrier().wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->peer(), 1) << error->what();
    EXPECT_EQ(error->reason(), Reason::kPeerDied) << error->what();
  });
}

// Rank 0 dies, rank 2 learns of it from the world and leaves, and rank 3 waits for rank 2 in the
// communicator of their machine.
TEST(Leaving, WhatEndsTheWorldEndsItsMachines) {
  fork_world(4, [](World& world) {
    world.barrier().wait();
    if (world.rank() == 0) {
      _exit(0);
    }
    Communicator& ranks = world.rank() == 3 ? world.machine() : world;
    const auto error = error_of([&] { ranks.barrier().wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), Reason::kPeerDied) << error->what();
    EXPECT_NE(std::string(error->what()).find("rank 0 (pid "), std::string::npos) << error->what();
  });
}

// The rank that makes the memory of the last machine dies in the middle of it.
TEST(Leaving, InTheMiddleOfAnAllocationIsNamedByItsNumberInTheWorld) {
  fork_world(4, [](World& world) {
    world.barrier().wait();
    const bool on_last = world.machine_rank() == world.machines() - 1;
    const int victim = world.machines() > 1 ? 2 : 0;
    ASSERT_EQ(on_last && world.local_rank() == 0, world.rank() == victim);
    ends_at_next_memory = world.rank() == victim;
    const auto error = error_of([&] { world.allocate(1 << 20); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), Reason::kPeerDied) << error->what();
    EXPECT_EQ(error->peer(), victim) << error->what();
  });
}

// Those who wait for it on its machine have a deadline, too, when nobody else is left to wait.
TEST(Leaving, InTheMiddleOfAnAllocationAStopIsMissedAtTheDeadline) {
  fork_world(
      4,
      [](World& world) {
        const std::int64_t own = getpid();
        std::vector<std::int64_t> pids(4);
        world.all_gather({&own, 1, Dtype::kInt64}, pids).wait();
        stops_at_next_memory = world.local_rank() == 0;
        const auto error = error_of([&] { world.allocate(1 << 20); });
        const int stopped = world.rank() - world.local_rank();
        kill(static_cast<pid_t>(pids[static_cast<std::size_t>(stopped)]), SIGCONT);
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), Reason::kTimeout) << error->what();
      },
      [](InitOptions& options) { options.timeout = Milliseconds(5000); });
}

TEST(Leaving, TheFirstReasonIsEveryones) {
  fork_world(3, [](World& world) {
    const std::string message = message_of<CommError>([&] {
      world.barrier().wait();  // a rank that has not yet seen its end may hear of the abort here
      if (world.rank() == 1) {
        world.abort("the first reason");
      } else if (world.rank() == 2) {
        rest(700);
        world.abort("a later reason");  // without having looked
      }
      world.barrier().wait();
    });
    EXPECT_NE(message.find("the first reason"), std::string::npos) << message;
  });
}

// What the ranks did last explains a file that cannot be used to nobody.
TEST(Leaving, StopEndsEveryRankWithoutFlightRecords) {
  const testing::TemporaryFolder records;
  for (const bool stop : {false, true}) {
    const std::string folder = records.path() + (stop ? "/stopped" : "/aborted");
    std::filesystem::create_directories(folder);
    fork_world(
        3,
        [&](World& world) {
          if (world.rank() == 1) {
            stop ? world.stop("the file is empty") : world.abort("the file is empty");
            return;
          }
          const auto error = error_of([&] { world.barrier().wait(); });
          ASSERT_TRUE(error);
          EXPECT_EQ(error->reason(), stop ? Reason::kStopped : Reason::kAborted);
          EXPECT_EQ(error->peer(), 1);
          const std::string message = error->what();
          EXPECT_NE(message.find("the file is empty"), std::string::npos) << message;
          for (const char* inside : {"flight record", "last operation", "between operations"}) {
            EXPECT_EQ(message.find(inside) == std::string::npos, stop) << message;
          }
        },
        [&](InitOptions& options) { options.flight_folder = folder; });
    EXPECT_EQ(std::filesystem::is_empty(folder), stop) << folder;
  }
}

// A rank whose World is gone, but not what it got from it.
TEST(Leaving, WhoKeepsMemoryHasStillLeft) {
  const std::string job = testing::unique_job();
  testing::fork_ranks(2, [&](int rank) {
    InitOptions options = testing::options_for(job, rank, 2);
    options.timeout = std::chrono::seconds(4);
    auto world = init(options);
    const SharedBuffer kept = world->allocate(100);
    if (rank == 0) {
      world.reset();
      rest(6000);
      EXPECT_EQ(kept.data()[99], std::byte{0});
      return;
    }
    const auto error = error_of([&] { world->barrier().wait(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason(), Reason::kPeerLeft) << error->what();
  });
}

// A rank that unwinds out of the middle of something, and goes on without its world: before the
// other has called it, and after, when both are already sending.
TEST(Leaving, InTheMiddleOfSomethingIsLeavingToo) {
  for (const bool comes_first : {true, false}) {
    const std::string job = testing::unique_job();
    testing::fork_ranks(2, [&](int rank) {
      InitOptions options = testing::options_for(job, rank, 2);
      options.timeout = std::chrono::seconds(4);
      auto world = init(options);
      std::vector<float> data(1 << 20, 1.0F);
      if ((rank == 0) != comes_first) {
        rest(500);
      }
      if (rank == 0) {
        world->all_reduce(data).forget();
        world.reset();
        rest(6000);
        return;
      }
      const auto error = error_of([&] { world->all_reduce(data).wait(); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->reason(), Reason::kPeerLeft) << error->what();
      EXPECT_EQ(error->peer(), 0) << error->what();
    });
  }
}

// Ranks 0 and 1 are the first whose patience ends, and those that they wait for do nothing but
// wait.
TEST(Leaving, WhoHoldsUpTheOthersIsNamedNotWhoWaitsToo) {
  fork_world(
      4,
      [](World& world) {
        const int rank = world.rank();
        std::vector<float> data(10, 1.0F);
        if (rank == 3) {
          rest(4000);
          return;
        }
        const int from = rank == 1 ? 0 : rank == 0 ? 2 : 3;
        rest(rank == 2 ? 500 : 0);
        const auto error = error_of([&] { world.recv(data, from).wait(); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), Reason::kTimeout) << error->what();
        EXPECT_EQ(error->peer(), 3) << error->what();
        EXPECT_NE(std::string(error->what()).find("s for rank 3 (pid "), std::string::npos)
            << error->what();
      },
      [](InitOptions& options) { options.timeout = Milliseconds(2000); });
}

// In a circle nobody can do more than wait: each names the one that it waits for.
TEST(Leaving, InACircleEveryoneIsLate) {
  fork_world(
      2,
      [](World& world) {
        std::vector<float> data(10, 1.0F);
        const auto error = error_of([&] { world.recv(data, 1 - world.rank()).wait(); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->reason(), Reason::kTimeout) << error->what();
        EXPECT_GE(error->peer(), 0) << error->what();
      },
      [](InitOptions& options) { options.timeout = Milliseconds(1000); });
}

TEST(Leaving, TimeBetweenPollsIsNotTheOthersFault) {
  fork_world(
      2,
      [](World& world) {
        std::vector<float> data(10, 1.0F);
        if (world.rank() == 1) {
          rest(3500);
        }
        Work work = world.all_reduce(data);
        if (world.rank() == 0) {
          EXPECT_FALSE(work.done());
          rest(500);  // computes, or is stopped
          EXPECT_NO_THROW(work.done());
          rest(1500);
        }
        work.wait();
        EXPECT_EQ(data[9], 2);
      },
      [](InitOptions& options) { options.timeout = Milliseconds(2000); });
}

// A copy that fork made ends with all destructors, helper threads or not.
TEST(Leaving, AForkedCopyEndsQuietly) {
  const std::string job = testing::unique_job();
  testing::fork_ranks(2, [&](int rank) {
    InitOptions options = testing::options_for(job, rank, 2);
    options.progress_thread = true;
    auto world = init(options);
    world->barrier().wait();
    const pid_t child = fork();
    if (child == 0) {
      world.reset();
      _exit(0);
    }
    EXPECT_EQ(testing::wait_for(child), 0);
    world->barrier().wait();
  });
}

}  // namespace
}  // namespace trireme
