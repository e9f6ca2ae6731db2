// Units that the ranks of a machine put together for each other (parallel/machine_source.cc), and
// what the others see when one of them is killed or stopped in the middle of it.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "parallel/memory/machine_lock.h"
#include "parallel/memory/unit_source.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme::machine_source_test {
namespace {

using namespace std::chrono_literals;
using detail::concat;

constexpr std::size_t kUnits = 40;
constexpr std::size_t kUnitBytes = 1000;
// A rank that has not ended by then hangs.
constexpr unsigned kHangs = 60;

// What the processes of a test tell each other.
struct Board {
  std::atomic<int> fetching{0};  // ranks that have begun to
  std::atomic<int> asking{0};    // ranks that are about to ask for what somebody fetches
  std::atomic<bool> go_on{false};
  detail::MachineLock lock;
};

Board* make_board() {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Board;
}

template <class T>
void await(const std::atomic<T>& word, T value) {
  while (word.load() != value) {
    std::this_thread::sleep_for(1ms);
  }
}

std::byte byte_of(std::size_t unit) {
  return static_cast<std::byte>(unit * 7 + 1);
}

std::unique_ptr<detail::UnitSource> make_source(World& world, detail::FetchUnit fetch) {
  return detail::make_machine_source(world,
                                     {std::vector<std::size_t>(kUnits, kUnitBytes),
                                      4 * kUnitBytes,
                                      std::move(fetch),
                                      MemoryLedger::create()});
}

// Gets a unit, which is whole, and gives it back.
void use(detail::UnitSource& source, std::size_t unit) {
  const std::byte* found = source.acquire(unit);
  for (std::size_t i = 0; i < kUnitBytes; ++i) {
    ASSERT_EQ(found[i], byte_of(unit)) << unit;
  }
  source.release(unit);
}

// The ranks of one test: each a process that ends by itself, or by a signal.
class Ranks {
 public:
  Ranks(int size, Milliseconds timeout, const std::function<void(World& world)>& body) {
    for (int rank = 0; rank < size; ++rank) {
      pids_.push_back(testing::fork_rank(rank, [&](int self) {
        alarm(kHangs);
        InitOptions options = testing::options_for(job_, self, size);
        options.timeout = timeout;
        const auto world = init(options);
        body(*world);
      }));
    }
  }
  void send(int rank, int signal) const { kill(pid(rank), signal); }
  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  int wait_for(int rank) const { return testing::wait_for(pid(rank)); }

 private:
  std::string job_ = testing::unique_job();
  std::vector<pid_t> pids_;
};

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }
}

TEST(MachineSource, GivesEveryRankWhatOneHasFetched) {
  std::atomic<int>* fetches = &make_board()->fetching;
  testing::fork_world(3, [&](World& world) {
    const auto source = make_source(world, [&](std::size_t unit, std::byte* to) {
      fetches->fetch_add(1);
      std::memset(to, static_cast<int>(byte_of(unit)), kUnitBytes);
    });
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      use(*source, unit);
      world.barrier().wait();
    }
    EXPECT_EQ(fetches->load(), static_cast<int>(kUnits)) << "each was fetched once";
    world.barrier().wait();
    source->outdate();
    use(*source, 3);
    world.barrier().wait();
    EXPECT_EQ(fetches->load(), static_cast<int>(kUnits) + 1) << "an update makes units old";
  });
}

// Two threads of each rank (the engine's and its prefetch) that ask for units in other orders.
TEST(MachineSource, IsUsedByTwoThreadsOfEveryRank) {
  testing::fork_world(3, [&](World& world) {
    const auto source = make_source(world, [&](std::size_t unit, std::byte* to) {
      std::this_thread::sleep_for(unit % 8 == 0 ? 60ms : 0ms);  // longer than a look
      std::memset(to, static_cast<int>(byte_of(unit)), kUnitBytes);
    });
    for (int round = 0; round < 3; ++round) {
      std::thread other([&] {
        for (std::size_t unit = 0; unit < kUnits / 2; ++unit) {
          use(*source, unit);
        }
      });
      for (std::size_t unit = kUnits - 1; unit >= kUnits / 2; --unit) {
        use(*source, unit);
      }
      other.join();
      world.barrier().wait();
      source->outdate();
      world.barrier().wait();
    }
  });
}

TEST(MachineSource, AFetchThatFailsIsTriedByTheNext) {
  Board* board = make_board();
  testing::fork_world(2, [&](World& world) {
    const auto source = make_source(world, [&](std::size_t unit, std::byte* to) {
      if (board->fetching.fetch_add(1) == 0) {
        await(board->asking, 1);
        std::this_thread::sleep_for(50ms);
        throw CommError(CommError::Reason::kTimeout, 5, "no answer");
      }
      std::memset(to, static_cast<int>(byte_of(unit)), kUnitBytes);
    });
    if (world.rank() == 0) {
      EXPECT_THROW(source->acquire(0), CommError);
    } else {
      while (board->fetching.load() == 0) {
        std::this_thread::sleep_for(1ms);
      }
      board->asking.store(1);
      use(*source, 0);
    }
    world.barrier().wait();
    use(*source, 0);
    EXPECT_EQ(board->fetching.load(), 2);
  });
}

// It leaves nothing behind that the others would wait for, and they name it: whoever waits for
// something at once, the others at the next collective.
TEST(MachineSource, AKilledWaiterHoldsUpNobody) {
  Board* board = make_board();
  const Ranks ranks(3, 300s, [&](World& world) {
    const auto source = make_source(world, [&](std::size_t unit, std::byte* to) {
      if (unit == 0) {
        board->fetching.store(1);
        await(board->go_on, true);
      }
      std::this_thread::sleep_for(30ms);  // the others wait for it meanwhile
      std::memset(to, static_cast<int>(byte_of(unit)), kUnitBytes);
    });
    if (world.rank() != 0) {
      await(board->fetching, 1);
      board->asking.fetch_add(1);
    }
    try {
      for (std::size_t unit = 0; unit < kUnits; ++unit) {
        use(*source, unit);
      }
      EXPECT_EQ(world.rank(), 0) << "has waited, and was not told";
      world.barrier().wait();
      ADD_FAILURE() << "the barrier does not miss a rank";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied);
      EXPECT_EQ(error.peer(), 1) << error.what();
    }
  });
  await(board->asking, 2);
  std::this_thread::sleep_for(200ms);
  ranks.send(1, SIGKILL);
  EXPECT_EQ(ranks.wait_for(1), SIGKILL);
  board->go_on.store(true);
  EXPECT_EQ(ranks.wait_for(0), 0);
  EXPECT_EQ(ranks.wait_for(2), 0);
}

TEST(MachineSource, AKilledFetcherIsNamedAtOnce) {
  Board* board = make_board();
  const Ranks ranks(3, 300s, [&](World& world) {
    const auto source = make_source(world, [&](std::size_t, std::byte*) {
      board->fetching.fetch_add(1);
      await(board->go_on, true);  // never
    });
    if (world.rank() != 0) {
      await(board->fetching, 1);
      board->asking.fetch_add(1);
    }
    try {
      source->acquire(0);
      ADD_FAILURE() << "a unit that nobody has fetched";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied);
      EXPECT_EQ(error.peer(), 0);
      expect_parts(error.what(),
                   {concat("rank ", world.rank(), ": rank 0 (pid "),
                    "on the same machine",
                    "crashed or was killed"});
    }
    EXPECT_THROW(source->acquire(0), CommError) << "nor later, at once";
  });
  await(board->asking, 2);
  std::this_thread::sleep_for(200ms);
  ranks.send(0, SIGKILL);
  EXPECT_EQ(ranks.wait_for(0), SIGKILL);
  EXPECT_EQ(ranks.wait_for(1), 0);
  EXPECT_EQ(ranks.wait_for(2), 0);
}

TEST(MachineSource, AStoppedFetcherIsNamedByTheDeadlineOfTheWorld) {
  Board* board = make_board();
  const Ranks ranks(3, 2s, [&](World& world) {
    const auto source = make_source(world, [&](std::size_t, std::byte*) {
      board->fetching.fetch_add(1);
      await(board->go_on, true);
    });
    if (world.rank() == 0) {
      source->acquire(0);
      return;
    }
    await(board->fetching, 1);
    board->asking.fetch_add(1);
    try {
      source->acquire(0);
      ADD_FAILURE() << "a unit that nobody has fetched";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kTimeout);
      EXPECT_EQ(error.peer(), 0);
      expect_parts(error.what(),
                   {concat("rank ", world.rank(), " waited until its deadline for rank 0 (pid "),
                    "fetches parameters from other machines",
                    "--timeout"});
    }
  });
  await(board->asking, 2);
  ranks.send(0, SIGSTOP);
  EXPECT_EQ(ranks.wait_for(1), 0);
  EXPECT_EQ(ranks.wait_for(2), 0);
  ranks.send(0, SIGKILL);
  EXPECT_EQ(ranks.wait_for(0), SIGKILL);
}

TEST(MachineLock, IsHeldByOneRankAtATime) {
  Board* board = make_board();
  int* count = reinterpret_cast<int*>(make_board());  // not atomic
  constexpr int kTimes = 20'000;
  testing::fork_world(3, [&](World& world) {
    const auto neighbours = detail::meet_neighbours(world);
    for (int i = 0; i < kTimes; ++i) {
      detail::NeighbourWatch watch(world, neighbours);
      const detail::MachineLock::Hold hold(board->lock, world.rank(), watch);
      ++*count;
    }
  });
  EXPECT_EQ(*count, 3 * kTimes);
}

TEST(MachineLock, ARankThatIsKilledWithItIsNamed) {
  Board* board = make_board();
  const Ranks ranks(3, 300s, [&](World& world) {
    const auto neighbours = detail::meet_neighbours(world);
    detail::NeighbourWatch watch(world, neighbours);
    if (world.rank() == 1) {
      const detail::MachineLock::Hold hold(board->lock, world.rank(), watch);
      board->fetching.store(1);
      await(board->go_on, true);  // never
    }
    await(board->fetching, 1);
    board->asking.fetch_add(1);
    try {
      const detail::MachineLock::Hold hold(board->lock, world.rank(), watch);
      ADD_FAILURE() << "rank 1 has it";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied);
      EXPECT_EQ(error.peer(), 1) << error.what();
    }
  });
  await(board->asking, 2);
  std::this_thread::sleep_for(100ms);
  ranks.send(1, SIGKILL);
  EXPECT_EQ(ranks.wait_for(1), SIGKILL);
  EXPECT_EQ(ranks.wait_for(0), 0);
  EXPECT_EQ(ranks.wait_for(2), 0);
}

}  // namespace
}  // namespace trireme::machine_source_test
