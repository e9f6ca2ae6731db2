// Ordinary memory read through the kernel: the same values as without, on every rank or on none,
// and every way in which it can fail.

#include "comm/shm/kernel_copy.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using testing::fork_rank;
using testing::fork_world;
using testing::message_of;
using testing::options_for;
using testing::unique_job;
using testing::wait_for;

// What the calls of process_vm_readv below do. Every forked rank has its own.
struct MadeUpKernel {
  int refuses_with = 0;
  bool shows_another_process = false;
  std::size_t most_bytes = ~std::size_t{0};  // of one call
  int calls = 0;
  int kills_in_call = 0;  // the process that is read, just before
  std::chrono::milliseconds sleeps{0};
};
MadeUpKernel kernel;

ssize_t read_memory(pid_t pid,
                    const iovec* local,
                    unsigned long locals,
                    const iovec* remote,
                    unsigned long remotes,
                    unsigned long flags) {
  ++kernel.calls;
  if (kernel.refuses_with != 0) {
    errno = kernel.refuses_with;
    return -1;
  }
  if (kernel.calls == kernel.kills_in_call) {
    kill(pid, SIGKILL);
  }
  if (kernel.sleeps.count() > 0) {
    std::this_thread::sleep_for(kernel.sleeps);
  }
  iovec to = *local;
  iovec from = *remote;
  to.iov_len = std::min(to.iov_len, kernel.most_bytes);
  from.iov_len = std::min(from.iov_len, kernel.most_bytes);
  EXPECT_EQ(locals, 1U);
  EXPECT_EQ(remotes, 1U);
  const ssize_t got = syscall(SYS_process_vm_readv, pid, &to, 1, &from, 1, flags);
  if (kernel.shows_another_process && got > 0) {
    static_cast<char*>(to.iov_base)[0] ^= 1;
  }
  return got;
}

// The calls that trying takes.
int calls_to_try(const World& world) {
  return world.size() - 1;
}

std::uint8_t value(int rank, std::size_t i) {
  return static_cast<std::uint8_t>((i * 2654435761U >> 13) + 53U * static_cast<unsigned>(rank));
}

std::vector<std::uint8_t> input(int rank, std::size_t bytes) {
  std::vector<std::uint8_t> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = value(rank, i);
  }
  return data;
}

void expect(const std::vector<std::uint8_t>& found,
            const std::vector<std::uint8_t>& expected,
            const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  const auto differs = std::mismatch(found.begin(), found.end(), expected.begin()).first;
  EXPECT_EQ(differs, found.end()) << what << " differs in byte " << differs - found.begin();
}

// Every operation that moves data, with parts of different lengths: none, on both sides of what
// goes with the announcement, and of several pages at odd addresses.
void check_operations(World& world) {
  const int rank = world.rank();
  const int size = world.size();
  Counts counts;
  for (int peer = 0; peer < size; ++peer) {
    constexpr std::int64_t kLengths[] = {50'001, 16'384, 0, 16'385, 123'457};
    counts.push_back(kLengths[peer % 5]);
  }
  const auto total =
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  const auto count_of = [&](int peer) {
    return static_cast<std::size_t>(counts[static_cast<std::size_t>(peer)]);
  };
  std::vector<std::uint8_t> gathered;
  for (int peer = 0; peer < size; ++peer) {
    const auto part = input(peer, count_of(peer));
    gathered.insert(gathered.end(), part.begin(), part.end());
  }
  const auto mine = input(rank, count_of(rank));

  std::vector<std::uint8_t> all(total);
  world.all_gather(mine, all, counts).wait();
  expect(all, gathered, "all_gather");

  for (int root = 0; root < size; ++root) {
    auto whole = input(rank, total);
    world.broadcast(whole, root).wait();
    expect(whole, input(root, total), "broadcast");

    std::vector<std::uint8_t> at_root(rank == root ? total : 0);
    world.gather(mine, at_root, root, counts).wait();
    expect(at_root, rank == root ? gathered : std::vector<std::uint8_t>{}, "gather");

    std::vector<std::uint8_t> part(count_of(rank));
    world.scatter(rank == root ? gathered : std::vector<std::uint8_t>{}, part, root, counts).wait();
    expect(part, mine, "scatter");
  }

  // Rank r sends count_of(p) bytes to p.
  const auto outgoing = input(rank, total);
  std::vector<std::uint8_t> incoming(count_of(rank) * static_cast<std::size_t>(size));
  world.all_to_all(outgoing, incoming, counts).wait();
  std::vector<std::uint8_t> expected;
  const auto begin = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  for (int peer = 0; peer < size; ++peer) {
    const auto theirs = input(peer, total);
    expected.insert(expected.end(),
                    theirs.begin() + begin,
                    theirs.begin() + begin + static_cast<std::int64_t>(count_of(rank)));
  }
  expect(incoming, expected, "all_to_all");
}

// Sums in several pieces, the last one short, and an uneven split.
void check_sums(World& world) {
  const auto ranks = static_cast<std::int64_t>(world.size());
  const std::size_t numel = 100'003 * static_cast<std::size_t>(ranks);
  const auto term = [](std::int64_t rank, std::size_t i) {
    return static_cast<std::int64_t>(i * 2654435761U >> 7) * (rank + 1);
  };
  std::vector<std::int64_t> data(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    data[i] = term(world.rank(), i);
  }
  const std::vector<std::int64_t> before = data;
  const auto sum = [&](std::size_t i) { return term(0, i) * (ranks * (ranks + 1) / 2); };
  Counts counts(static_cast<std::size_t>(ranks), 0);
  counts.front() = 70'001;
  counts.back() += static_cast<std::int64_t>(numel) - 70'001;
  std::vector<std::int64_t> part(
      static_cast<std::size_t>(counts[static_cast<std::size_t>(world.rank())]));
  world.reduce_scatter(data, part, ReduceOp::kSum, counts).wait();
  EXPECT_EQ(data, before);
  const std::size_t first = world.rank() == 0 ? 0 : 70'001;
  for (std::size_t i = 0; i < part.size(); ++i) {
    ASSERT_EQ(part[i], sum(first + i)) << "reduce_scatter, element " << i;
  }
  world.all_reduce(data).wait();
  for (std::size_t i = 0; i < numel; ++i) {
    ASSERT_EQ(data[i], sum(i)) << "all_reduce, element " << i;
  }
}

class KernelCopy : public ::testing::Test {
 protected:
  KernelCopy() { kernel = {}; }
  ~KernelCopy() override { kernel = {}; }
};

TEST_F(KernelCopy, GivesTheValues) {
  fork_world(5, [](World& world) {
    ASSERT_TRUE(world.ordinary_memory().one_copy) << world.ordinary_memory().reason;
    check_operations(world);
    EXPECT_GT(kernel.calls, calls_to_try(world));
    kernel.calls = 0;
    check_sums(world);
    EXPECT_GT(kernel.calls, 0);
    EXPECT_NE(world.description().find("ordinary memory in one copy"), std::string::npos)
        << world.description();
  });
}

TEST_F(KernelCopy, GoesOnAfterAShortRead) {
  kernel.most_bytes = 5000;
  fork_world(3, [](World& world) {
    ASSERT_TRUE(world.ordinary_memory().one_copy) << world.ordinary_memory().reason;
    check_operations(world);
    check_sums(world);
  });
}

TEST_F(KernelCopy, GivesTheSameSwitchedOff) {
  fork_world(
      3,
      [](World& world) {
        EXPECT_FALSE(world.ordinary_memory().one_copy);
        check_operations(world);
        check_sums(world);
        EXPECT_EQ(kernel.calls, 0);
      },
      [](InitOptions& options) { options.kernel_copy = "off"; });
}

TEST_F(KernelCopy, IsUsedByAllOrNone) {
  const std::string job = unique_job();
  testing::fork_ranks(3, [&](int rank) {
    InitOptions options = options_for(job, rank, 3);
    options.kernel_copy = rank == 1 ? "off" : "auto";
    const auto world = init(options);
    EXPECT_FALSE(world->ordinary_memory().one_copy);
    EXPECT_EQ(world->ordinary_memory().reason, "switched off on rank 1");
    EXPECT_NE(world->ordinary_memory().remedy.find("TRIREME_KERNEL_COPY"), std::string::npos);
    EXPECT_NE(world->description().find("ordinary memory in two copies"), std::string::npos);
    check_operations(*world);
    EXPECT_EQ(kernel.calls, 0);
  });
}

TEST_F(KernelCopy, AnUnknownSettingIsRefused) {
  InitOptions options = options_for(unique_job(), 0, 1);
  options.kernel_copy = "always";
  const std::string message = message_of<ConfigError>([&] { init(options); });
  EXPECT_NE(message.find("expected auto or off; found \"always\""), std::string::npos) << message;
}

// One rank may not: all know who, why, and what would help.
void expect_not_used(const std::function<void()>& on_rank_1,
                     const std::vector<std::string>& parts) {
  const std::string job = unique_job();
  testing::fork_ranks(3, [&](int rank) {
    if (rank == 1) {
      on_rank_1();
    }
    const auto world = init(options_for(job, rank, 3));
    const OrdinaryMemory& memory = world->ordinary_memory();
    EXPECT_FALSE(memory.one_copy);
    EXPECT_FALSE(memory.remedy.empty());
    for (const std::string& part : parts) {
      EXPECT_NE(memory.reason.find(part), std::string::npos) << memory.reason;
    }
    check_operations(*world);
  });
}

TEST_F(KernelCopy, ARefusalIsNamed) {
  expect_not_used([] { kernel.refuses_with = EPERM; },
                  {"rank 1 cannot read the memory of rank 0", "Operation not permitted"});
}

TEST_F(KernelCopy, AKernelWithoutItIsNamed) {
  expect_not_used([] { kernel.refuses_with = ENOSYS; }, {"Function not implemented"});
}

// As where a process number means somebody else in the reader's namespace.
TEST_F(KernelCopy, AnotherProcessUnderTheNumberIsFound) {
  expect_not_used([] { kernel.shows_another_process = true; },
                  {"rank 1 cannot read the memory of rank 0", "another process"});
}

// The kernel's own refusal: processes of another user than root that may not be read.
TEST_F(KernelCopy, ARealRefusalIsNamed) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const std::string job = unique_job();
  testing::fork_ranks(2, [&](int rank) {
    constexpr uid_t kNobody = 65534;
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    ASSERT_EQ(prctl(PR_SET_DUMPABLE, rank == 0 ? 0 : 1, 0, 0, 0), 0);
    const auto world = init(options_for(job, rank, 2));
    EXPECT_FALSE(world->ordinary_memory().one_copy);
    EXPECT_NE(world->ordinary_memory().reason.find(
                  "rank 1 cannot read the memory of rank 0 (process_vm_readv"),
              std::string::npos)
        << world->ordinary_memory().reason;
    check_operations(*world);
  });
}

// --- what happens while it is used

// A rank's memory is its own again when wait() returns, however slow its readers are.
TEST_F(KernelCopy, WaitsForItsReaders) {
  fork_world(3, [](World& world) {
    constexpr std::size_t kBytes = 100'000;
    ASSERT_TRUE(world.ordinary_memory().one_copy);
    kernel.sleeps = std::chrono::milliseconds(world.rank() == 2 ? 30 : 0);
    for (int turn = 0; turn < 5; ++turn) {
      auto data = input(turn + world.rank(), kBytes);
      world.broadcast(data, 0).wait();
      expect(data, input(turn, kBytes), "broadcast");
      std::fill(data.begin(), data.end(), 0xEE);
      auto part = input(turn + world.rank(), kBytes);
      std::vector<std::uint8_t> all(3 * kBytes);
      world.all_gather(part, all).wait();
      std::fill(part.begin(), part.end(), 0xEE);
      for (int peer = 0; peer < 3; ++peer) {
        const auto begin = all.begin() + static_cast<std::int64_t>(kBytes) * peer;
        expect({begin, begin + kBytes}, input(turn + peer, kBytes), "all_gather");
      }
      std::vector<std::int64_t> sums(50'000, world.rank() + turn);
      world.all_reduce(sums).wait();
      EXPECT_EQ(sums, std::vector<std::int64_t>(50'000, 3 + 3 * turn));
      std::fill(sums.begin(), sums.end(), -1);
    }
  });
}

// The rank whose memory is being read is killed: the others name it, and do not go on with what
// they have read.
void expect_death_named(const std::function<void(World&)>& operation) {
  const std::string job = unique_job();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) {
    pids.push_back(fork_rank(rank, [&](int me) {
      const auto world = init(options_for(job, me, 3));
      ASSERT_TRUE(world->ordinary_memory().one_copy);
      world->barrier().wait();  // who is killed below has been tried by everyone
      kernel.calls = 0;
      kernel.kills_in_call = me == 2 ? 1 : 0;  // rank 2 begins with rank 0
      try {
        operation(*world);
        world->barrier().wait();  // who had read it all before has to hear of it here
        ADD_FAILURE() << "rank " << me << " has not noticed";
      } catch (const CommError& error) {
        EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied);
        EXPECT_EQ(error.peer(), 0);
        EXPECT_NE(std::string(error.what()).find(detail::concat("rank 0 (pid ", pids[0])),
                  std::string::npos)
            << error.what();
      }
    }));
  }
  EXPECT_TRUE(WIFSIGNALED(wait_for(pids[0])));
  EXPECT_EQ(wait_for(pids[1]), 0);
  EXPECT_EQ(wait_for(pids[2]), 0);
}

TEST_F(KernelCopy, ARankThatDiesWhileItIsReadIsNamed) {
  expect_death_named([](World& world) {
    std::vector<std::uint8_t> mine(1'000'000);
    world.scatter(std::vector<std::uint8_t>(3'000'000, 1), mine, 0).wait();
  });
  expect_death_named([](World& world) {
    std::vector<std::uint8_t> all(3'000'000);
    world.all_gather(std::vector<std::uint8_t>(1'000'000), all).wait();
  });
  expect_death_named([](World& world) {
    std::vector<float> data(1'000'000, 1);
    world.all_reduce(data).wait();
  });
}

// Memory that cannot be read, as after it was returned: its rank is named on all ranks, itself
// included.
TEST_F(KernelCopy, MemoryThatCannotBeReadIsNamed) {
  fork_world(3, [](World& world) {
    constexpr std::int64_t kBytes = 256 << 10;
    auto* memory = static_cast<std::byte*>(
        mmap(nullptr, 3 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    std::byte* const mine = memory + kBytes * world.rank();
    if (world.rank() == 2) {
      ASSERT_EQ(mprotect(mine + kBytes / 2, kBytes / 2, PROT_NONE), 0);
    }
    try {
      world
          .all_gather(ConstSpan(mine, kBytes, Dtype::kUint8),
                      Span(memory, 3 * kBytes, Dtype::kUint8))
          .wait();
      ADD_FAILURE() << "rank " << world.rank() << " has not noticed";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), 2);
      for (const char* part : {"the memory that rank 2 (pid", "Bad address", "wait()"}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  });
}

// Ranks that are threads have no need of the kernel.
TEST_F(KernelCopy, ThreadsOfOneProcessCopyThemselves) {
  testing::spawn_world(3, [](World& world) {
    EXPECT_TRUE(world.ordinary_memory().one_copy);
    check_operations(world);
  });
  EXPECT_EQ(kernel.calls, 0);
}

}  // namespace
}  // namespace trireme

// In place of the C library's: the program's own comes first.
extern "C" ssize_t process_vm_readv(pid_t pid,
                                    const iovec* local,
                                    unsigned long locals,
                                    const iovec* remote,
                                    unsigned long remotes,
                                    unsigned long flags) noexcept {
  return trireme::read_memory(pid, local, locals, remote, remotes, flags);
}
