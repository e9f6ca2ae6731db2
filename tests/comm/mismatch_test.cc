#include <chrono>
#include <functional>
#include <numeric>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::fork_world;
using testing::message_of;

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

// Ranks 0 and 1 do different things; every rank is told both calls.
void expect_mismatch(const std::function<void(World&)>& first,
                     const std::function<void(World&)>& second,
                     const std::vector<std::string>& parts) {
  fork_world(3, [&](World& world) {
    const std::string message =
        message_of<CommError>([&] { (world.rank() == 1 ? second : first)(world); });
    expect_parts(message, parts);
    try {
      world.barrier().wait();
      ADD_FAILURE() << "the communicator went on";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kMismatch);
    }
  });
}

std::vector<float> floats(std::size_t count) {
  return std::vector<float>(count, 1);
}

TEST(Mismatch, DifferentOperationsAreNamed) {
  expect_mismatch(
      [](World& world) {
        auto data = floats(10);
        world.all_reduce(data).wait();
      },
      [](World& world) {
        auto data = floats(10);
        world.broadcast(data, 2).wait();
      },
      {"different operations",
       "all_reduce(sum, float32 x 10)",
       "broadcast(float32 x 10, root 2)",
       "rank 1"});
}

TEST(Mismatch, DifferentLengthsAreNamed) {
  expect_mismatch(
      [](World& world) {
        auto data = floats(100'000);
        world.all_reduce(data).wait();
      },
      [](World& world) {
        auto data = floats(99'999);
        world.all_reduce(data).wait();
      },
      {"different lengths", "float32 x 100000", "float32 x 99999"});
}

// One rank's announcement says that all is in it, another's data is already on its way.
TEST(Mismatch, DifferentLengthsOfSmallAndLargeAreNamed) {
  const auto scatter = [](std::int64_t numel) {
    return [numel](World& world) {
      const auto input = floats(static_cast<std::size_t>(numel));
      auto output = floats(input.size() / 3);
      Work first = world.reduce_scatter(input, output);
      auto next = output;
      const Work second = world.reduce_scatter(input, next);  // on its way when the first fails
      first.wait();
    };
  };
  for (const auto& [one, other] :
       {std::pair(300, 600), {300, 300'000}, {1'500'000, 3'000'000}, {24'576, 24'579}}) {
    expect_mismatch(scatter(one),
                    scatter(other),
                    {"different lengths",
                     detail::concat("float32 x ", one),
                     detail::concat("float32 x ", other)});
    expect_mismatch(scatter(other), scatter(one), {"different lengths"});
  }
}

TEST(Mismatch, DifferentLengthsOfABroadcastAreNamed) {
  const auto tell = [](std::int64_t numel) {
    return [numel](World& world) {
      auto data = floats(static_cast<std::size_t>(numel));
      world.broadcast(data, 0).wait();
    };
  };
  for (const auto& [one, other] : {std::pair(8192, 8193), {65'536, 65'537}, {100'000, 500'000}}) {
    expect_mismatch(tell(one), tell(other), {"different lengths"});
    expect_mismatch(tell(other), tell(one), {"different lengths"});
  }
}

// While the ranks wait for a late one, data that does not fit has come from another: that one is
// well, and not to be called lost.
TEST(Mismatch, IsNamedWhenALateRankHasCome) {
  const auto gather = [](World& world, std::size_t numel) {
    auto input = floats(numel);
    auto output = floats(3 * numel);
    world.all_gather(input, output).wait();
  };
  const auto tell = [](World& world, std::size_t numel) {
    auto data = floats(numel);
    world.broadcast(data, 0).wait();
  };
  const std::vector<std::function<void(World&, std::size_t)>> calls = {gather, tell};
  for (const auto& call : calls) {
    for (const bool longer : {false, true}) {
      fork_world(3, [&](World& world) {
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
        }
        const std::string message = message_of<CommError>(
            [&] { call(world, (world.rank() == 2) == longer ? 90'000 : 60'000); });
        expect_parts(message, {"different lengths"});
      });
    }
  }
}

// On machines of several ranks some operations go through the machines' memory, others between all
// ranks directly.
TEST(Mismatch, OfOperationsThatTakeDifferentWaysIsNamed) {
  const auto sum = [](World& world) {
    auto data = floats(1000);
    world.all_reduce(data).wait();
  };
  const auto collect = [](World& world) {
    const auto input = floats(250);
    auto output = floats(world.rank() == 0 ? 1000 : 0);
    world.gather(input, output, 0).wait();
  };
  for (const std::set<int>& collecting : {std::set<int>{1}, {2, 3}, {0, 1, 3}}) {
    fork_world(4, [&](World& world) {
      const std::string message = message_of<CommError>([&] {
        if (collecting.count(world.rank()) > 0) {
          collect(world);
        } else {
          sum(world);
        }
      });
      expect_parts(message, {"different operations", "all_reduce", "gather"});
    });
  }
}

TEST(Mismatch, DifferentDtypesAreNamed) {
  expect_mismatch(
      [](World& world) {
        auto data = floats(10);
        world.all_reduce(data).wait();
      },
      [](World& world) {
        std::vector<double> data(10);
        world.all_reduce(data).wait();
      },
      {"different dtypes", "float32 x 10", "float64 x 10"});
}

TEST(Mismatch, DifferentReductionsAreNamed) {
  expect_mismatch(
      [](World& world) {
        auto data = floats(10);
        world.all_reduce(data, ReduceOp::kMax).wait();
      },
      [](World& world) {
        auto data = floats(10);
        world.all_reduce(data, ReduceOp::kMin).wait();
      },
      {"different reductions", "max", "min"});
}

TEST(Mismatch, DifferentRootsAreNamed) {
  expect_mismatch(
      [](World& world) {
        auto data = floats(10);
        world.broadcast(data, 0).wait();
      },
      [](World& world) {
        auto data = floats(10);
        world.broadcast(data, 1).wait();
      },
      {"different roots", "root 0", "root 1"});
}

TEST(Mismatch, GatherOfAWrongLengthNamesTheRank) {
  fork_world(2, [](World& world) {
    auto input = floats(world.rank() == 1 ? 4 : 5);
    auto output = floats(world.rank() == 0 ? 10 : 0);
    const std::string message =
        message_of<CommError>([&] { world.gather(input, output, 0).wait(); });
    expect_parts(message, {"gather", "rank 1", "must have 5 elements, found 4"});
  });
}

TEST(Mismatch, MessagesMustBeReceivedAsTheyWereSent) {
  fork_world(2, [](World& world) {
    auto data = floats(10);
    if (world.rank() == 0) {
      world.send(data, 1, /*tag=*/3).wait();
      EXPECT_THROW(world.barrier().wait(), CommError);
    } else {
      const std::string message =
          message_of<CommError>([&] { world.recv(data, 0, /*tag=*/4).wait(); });
      expect_parts(message, {"tag 4", "tag 3", "rank 0"});
    }
  });
}

TEST(Mismatch, AllocationsOfDifferentSizesAreNamed) {
  for (const int ranks : {2, 4}) {  // on machines: another size on each
    fork_world(ranks, [&](World& world) {
      const std::string message =
          message_of<CommError>([&] { world.allocate(world.rank() < ranks / 2 ? 100 : 200); });
      expect_parts(message, {"allocate(100 bytes)", "allocate(200 bytes)"});
    });
  }
}

TEST(Mismatch, OfAnAllocationAndSomethingElseIsNamed) {
  for (const std::set<int>& allocating : {std::set<int>{1}, {2, 3}}) {
    fork_world(4, [&](World& world) {
      const std::string message = message_of<CommError>([&] {
        if (allocating.count(world.rank()) > 0) {
          world.allocate(100);
        } else {
          auto data = floats(1000);
          world.all_reduce(data).wait();
        }
      });
      expect_parts(message, {"different operations", "allocate(100 bytes)", "all_reduce"});
    });
  }
}

TEST(Arguments, AreCheckedBeforeAnythingIsIssued) {
  const auto world = init(testing::options_for(testing::unique_job(), 0, 1));
  auto data = floats(10);
  auto part = floats(9);
  std::vector<double> doubles(10);
  expect_parts(message_of<ConfigError>([&] { world->broadcast(data, 1).wait(); }),
               {"root 1", "1 ranks"});
  expect_parts(message_of<ConfigError>([&] { world->broadcast(data, -1).wait(); }), {"root -1"});
  expect_parts(message_of<ConfigError>([&] { world->send(data, 7).wait(); }), {"rank 7"});
  expect_parts(message_of<ConfigError>([&] { world->reduce_scatter(data, part).wait(); }),
               {"output", "10 elements, found 9"});
  expect_parts(message_of<ConfigError>([&] { world->all_gather(data, doubles).wait(); }),
               {"float32", "float64"});
  expect_parts(message_of<ConfigError>([&] {
                 world->all_gather(data, data, {5, 5}).wait();
               }),
               {"2 entries for 1 ranks"});
  expect_parts(message_of<ConfigError>([&] { world->all_gather(data, data, {9}).wait(); }),
               {"add up to 9"});
  expect_parts(message_of<ConfigError>([&] { world->allocate(16).span(Dtype::kFloat32, 5); }),
               {"16 bytes"});
  expect_parts(message_of<ConfigError>([&] { world->allocate(16).span(Dtype::kFloat32, 1, 2); }),
               {"aligned"});
  world->barrier().wait();  // nothing is broken
}

}  // namespace
}  // namespace trireme
