// Exchanges with neighbours: in a ring, in any graph, and where two ranks do not agree about it.

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme {
namespace {

using detail::concat;
using detail::index;
using testing::Bytes;
using testing::fork_world;
using testing::message_of;
using testing::spawn_world;

TEST(Neighbours, OfARingAreBeforeAndAfter) {
  const auto expect = [](int rank, int size, const std::vector<int>& others) {
    const Neighbours found = ring_neighbours(rank, size);
    EXPECT_EQ(found.from, others) << rank << " of " << size;
    EXPECT_EQ(found.to, others) << rank << " of " << size;
  };
  expect(0, 1, {});
  expect(0, 2, {1});
  expect(1, 2, {0});
  expect(0, 3, {2, 1});
  expect(4, 5, {3, 0});
}

// All hear what the formula says: what rank r contributes is known everywhere.
void check_graph(World& world, const Neighbours& mine, Dtype dtype, const Counts& numels) {
  const auto input_of = [&](int rank) {
    return testing::make_input(dtype, numels[index(rank)], rank);
  };
  const Bytes input = input_of(world.rank());
  Bytes expected;
  for (const int from : mine.from) {
    const Bytes theirs = input_of(from);
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  Bytes output(expected.size(), 0xA5);
  world
      .neighbour_all_gather(
          ConstSpan(input.data(), numels[index(world.rank())], dtype),
          Span(output.data(), static_cast<std::int64_t>(output.size() / dtype_bytes(dtype)), dtype),
          mine)
      .wait();
  EXPECT_EQ(output, expected) << "rank " << world.rank() << " of " << world.size() << " "
                              << dtype_name(dtype);
}

class NeighboursTest : public ::testing::TestWithParam<const char*> {};

TEST_P(NeighboursTest, HearEachOther) {
  for (const int size : {1, 2, 3, 4, 5}) {
    fork_world(
        size,
        [](World& world) {
          const int rank = world.rank();
          const int ranks = world.size();
          for (const Dtype dtype :
               {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kInt64, Dtype::kBool}) {
            for (const std::int64_t numel : {0, 1, 1021, 30'011, 200'003}) {
              check_graph(world, ring_neighbours(rank, ranks), dtype, Counts(index(ranks), numel));
            }
          }
          // One way, as many as differ; who is alone hears nobody.
          if (ranks > 1) {
            Counts numels(index(ranks));
            std::iota(numels.begin(), numels.end(), 40'000);
            numels[0] = 0;
            const Neighbours one_way{{(rank + ranks - 1) % ranks}, {(rank + 1) % ranks}};
            check_graph(world, one_way, Dtype::kFloat32, numels);
            // A star that only the centre speaks in, heard in an order of the listener's.
            Neighbours star;
            for (int other = 1; other < ranks; ++other) {
              if (rank == 0) {
                star.to.push_back(other);
                star.from.insert(star.from.begin(), other);
              }
            }
            if (rank != 0) {
              star = {{0}, {0}};
            }
            check_graph(world, star, Dtype::kFloat32, Counts(index(ranks), 25'000));
            const Neighbours lonely = rank == 0   ? Neighbours{{1}, {1}}
                                      : rank == 1 ? Neighbours{{0}, {0}}
                                                  : Neighbours{};
            check_graph(world, lonely, Dtype::kFloat32, Counts(index(ranks), 25'000));
          }
        },
        [](InitOptions& options) { options.algorithm = GetParam(); });
  }
}

INSTANTIATE_TEST_SUITE_P(By, NeighboursTest, ::testing::Values("auto", "ring", "doubling"));

// Beside other operations in flight, and in memory that is shared.
TEST(Neighbours, AreOneOfManyOperations) {
  spawn_world(3, [](World& world) {
    constexpr std::int64_t kNumel = 70'001;
    const SharedBuffer buffer = world.allocate(kNumel * 3 * sizeof(float));
    const Span whole = buffer.span(Dtype::kFloat32, kNumel * 3);
    const Span input = whole.part(0, kNumel);
    const Span output = whole.part(kNumel, kNumel * 2);
    auto* const data = reinterpret_cast<float*>(input.bytes());
    const auto* const heard = reinterpret_cast<const float*>(output.bytes());
    for (int round = 0; round < 20; ++round) {
      std::fill_n(data, kNumel, static_cast<float>(10 * round + world.rank()));
      std::vector<double> sum(1000, 1);
      Work adding = world.all_reduce(sum);
      Work work = world.neighbour_all_gather(input, output, ring_neighbours(world.rank(), 3));
      Work meeting = world.barrier();
      meeting.wait();
      work.wait();
      adding.wait();
      EXPECT_EQ(heard[0], static_cast<float>(10 * round + (world.rank() + 2) % 3));
      EXPECT_EQ(heard[2 * kNumel - 1], static_cast<float>(10 * round + (world.rank() + 1) % 3));
      world.barrier().wait();
    }
  });
}

void expect_refusal(const std::function<Neighbours(int)>& of,
                    const std::vector<std::string>& parts) {
  fork_world(3, [&](World& world) {
    const std::vector<float> input(5, 1);
    const Neighbours mine = of(world.rank());
    std::vector<float> output(5 * mine.from.size());
    const std::string message = message_of<CommError>([&] {
      world.neighbour_all_gather(input, output, mine).wait();
      world.barrier().wait();
    });
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  });
}

TEST(Neighbours, ThatDoNotNameEachOtherAreNamed) {
  expect_refusal(
      [](int rank) {
        return rank == 0 ? Neighbours{{1}, {}} : Neighbours{};
      },
      {"rank 0 names rank 1 (pid", "Neighbours::from", "rank 1 does not name it"});
  expect_refusal(
      [](int rank) {
        return rank == 0 ? Neighbours{{}, {2}} : Neighbours{};
      },
      {"rank 2 does not name rank 0 (pid", "rank 0 names it in Neighbours::to"});
}

TEST(Neighbours, OfOtherLengthsThanTheOutputAreNamed) {
  fork_world(2, [](World& world) {
    const std::vector<float> input(world.rank() == 0 ? 5 : 6, 1);
    std::vector<float> output(5);
    const std::string message = message_of<CommError>([&] {
      world.neighbour_all_gather(input, output, ring_neighbours(world.rank(), 2)).wait();
      world.barrier().wait();  // what rank 1 gets is as long as it says
    });
    EXPECT_NE(message.find("the output of rank 0"), std::string::npos) << message;
    EXPECT_NE(message.find("must have 6 elements, found 5"), std::string::npos) << message;
  });
}

TEST(Neighbours, ThatCannotBeAreRefused) {
  fork_world(2, [](World& world) {
    const std::vector<float> input(5, 1);
    std::vector<float> output(5);
    const auto refusal = [&](const Neighbours& neighbours) {
      return message_of<ConfigError>(
          [&] { world.neighbour_all_gather(input, output, neighbours).wait(); });
    };
    const auto me = world.rank();
    EXPECT_NE(refusal({{2}, {}}).find("Neighbours::from 2 is outside"), std::string::npos);
    EXPECT_NE(refusal({{}, {me}}).find("must name other ranks, each once; found " + concat(me)),
              std::string::npos);
    EXPECT_NE(refusal({{1 - me, 1 - me}, {}}).find("each once"), std::string::npos);
    world.barrier().wait();  // nobody has said anything
  });
}

}  // namespace
}  // namespace trireme
