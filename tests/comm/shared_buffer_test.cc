#include "trireme/comm/shared_buffer.h"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"

namespace trireme {
namespace {

using testing::fork_world;
using testing::message_of;

TEST(SharedBuffer, IsZeroAtFirstAndReadableByPeers) {
  fork_world(3, [](World& world) {
    const SharedBuffer buffer = world.allocate(10'000);
    for (std::size_t i = 0; i < buffer.size_bytes(); ++i) {
      ASSERT_EQ(buffer.data()[i], std::byte{0});
    }
    world.barrier().wait();
    buffer.data()[9'999] = static_cast<std::byte>(world.rank() + 1);
    world.barrier().wait();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(buffer.peer(peer)[9'999], static_cast<std::byte>(peer + 1));
    }
    world.barrier().wait();
  });
}

// Parts of different sizes with nothing between them, and pages for no more than that.
TEST(SharedBuffer, MayBeOneRun) {
  for (const Counts& division : {Counts{10'000, 0, 123}, Counts{0, 0, 1}, Counts{0, 0, 0}}) {
    fork_world(3, [&](World& world) {
      const SharedBuffer buffer = world.allocate_run(division);
      const auto own = static_cast<std::size_t>(division[static_cast<std::size_t>(world.rank())]);
      const auto total = static_cast<std::size_t>(division[0] + division[1] + division[2]);
      EXPECT_EQ(buffer.size_bytes(), own);
      const std::size_t page = SharedBuffer::page_bytes();
      EXPECT_EQ(buffer.taken_bytes(), std::max<std::size_t>(1, (total + page - 1) / page) * page);
      EXPECT_THROW(buffer.span(Dtype::kUint8, static_cast<std::int64_t>(own) + 1), ConfigError);
      for (std::size_t i = 0; i < total; ++i) {
        ASSERT_EQ(buffer.whole()[i], std::byte{0});
      }
      world.barrier().wait();
      for (std::size_t i = 0; i < own; ++i) {
        buffer.data()[i] = static_cast<std::byte>(world.rank() + 1);
      }
      world.barrier().wait();
      std::size_t at = 0;
      for (int peer = 0; peer < 3; ++peer) {
        EXPECT_EQ(buffer.peer(peer), buffer.whole() + at);
        const auto theirs = static_cast<std::size_t>(division[static_cast<std::size_t>(peer)]);
        for (const std::size_t end = at + theirs; at < end; ++at) {
          ASSERT_EQ(buffer.whole()[at], static_cast<std::byte>(peer + 1)) << at;
          ASSERT_EQ(buffer.whole_read_only()[at], static_cast<std::byte>(peer + 1)) << at;
        }
      }
      world.barrier().wait();
    });
  }
}

TEST(SharedBuffer, TooLargeIsAnErrorOnEveryRankAndBreaksNothing) {
  // Asked once: by the time that each rank asks, something else on the machine may have taken some.
  const std::size_t too_large = available_memory_bytes() * 2 / 3;
  fork_world(2, [too_large](World& world) {
    const std::string message = message_of<MemoryError>([&] { world.allocate(too_large); });
    EXPECT_NE(message.find("MiB"), std::string::npos) << message;
    const SharedBuffer small = world.allocate(1000);
    std::vector<float> data = {1};
    world.all_reduce(data).wait();
    EXPECT_EQ(data[0], 2);
  });
}

TEST(Communicator, RefusesMemoryOfAnotherDeviceByName) {
  fork_world(2, [](World& world) {
    std::vector<float> data = {1};
    const Span elsewhere(data.data(), 1, Dtype::kFloat32, {}, {DeviceType::kCuda, 1});
    const std::string message =
        message_of<ConfigError>([&] { world.all_reduce(elsewhere).wait(); });
    EXPECT_NE(message.find("all_reduce: memory of cuda:1 cannot be communicated"),
              std::string::npos)
        << message;
    world.all_reduce(data).wait();
    EXPECT_EQ(data[0], 2);
  });
}

TEST(SharedBuffer, AFileSizeLimitIsAnErrorAndNoSignal) {
  fork_world(2, [](World& world) {
    const rlimit limit{1 << 20, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_NE(message_of<MemoryError>([&] { world.allocate(8 << 20); }).find("ulimit -f"),
              std::string::npos);
  });
}

TEST(SharedBuffer, IsInvisibleInTheFileSystem) {
  // Of ours: others may come and go meanwhile, as those of an MPI or the folders of other tests.
  const auto files_in_shm = [] {
    return testing::run_program(
               {"find", "/dev/shm", "-maxdepth", "1", "-type", "f", "-name", "*trireme*"})
        .out;
  };
  const std::string before = files_in_shm();
  fork_world(2, [&](World& world) {
    const SharedBuffer buffer = world.allocate(100'000);
    world.barrier().wait();
    EXPECT_EQ(files_in_shm(), before);
    world.barrier().wait();
  });
}

TEST(SharedBuffer, IsReturnedWithItsLastHandle) {
  fork_world(2, [](World& world) {
    const auto mapped = [] {
      const std::string maps = testing::read_file("/proc/self/maps");
      int count = 0;
      for (std::size_t at = maps.find("memfd:trireme"); at != std::string::npos;
           at = maps.find("memfd:trireme", at + 1)) {
        ++count;
      }
      return count;
    };
    const int before = mapped();
    for (int i = 0; i < 50; ++i) {
      SharedBuffer buffer = world.allocate(1 << 20);
      const Span span = buffer.span(Dtype::kFloat32, 10);
      buffer = {};
      EXPECT_EQ(mapped(), before + 1);  // the span still holds it
      world.barrier().wait();
    }
    EXPECT_EQ(mapped(), before);
  });
}

TEST(World, CanBeBuiltAgainAndBesideAnother) {
  const std::string job = testing::unique_job();
  testing::fork_ranks(3, [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      const auto one = init(testing::options_for(job, rank, 3));
      const auto two = init(testing::options_for(job, rank, 3));
      std::vector<int> a = {1};
      std::vector<int> b = {10};
      Work first = one->all_reduce(a);
      Work second = two->all_reduce(b);
      second.wait();
      first.wait();
      EXPECT_EQ(a[0], 3);
      EXPECT_EQ(b[0], 30);
    }
  });
}

TEST(World, OfOneRankNeedsNoLauncher) {
  const auto world = init();
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->launcher(), "none");
  std::vector<float> data = {3};
  world->all_reduce(data, ReduceOp::kAverage).wait();
  EXPECT_EQ(data[0], 3);
  EXPECT_EQ(world->allocate(100).size_bytes(), 100U);
}

}  // namespace
}  // namespace trireme
