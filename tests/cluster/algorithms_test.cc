// Every algorithm between ranks that share no memory, asked for by name: those that keep the order
// of summation give the reference bits; the ring rounds in its own order, and says so.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using detail::index;

using testing::Bytes;
using testing::fork_world;
using testing::Terms;

// Inside of an announcement, one piece, several pieces, and no multiple of anything.
constexpr std::array<std::int64_t, 5> kLengths = {1, 1021, 30'011, 200'003, 1'100'009};

// Computed by the first that asks, for all algorithms.
const std::vector<Terms>& terms_for(int size) {
  static std::map<int, std::vector<Terms>> made;
  std::vector<Terms>& terms = made[size];
  if (terms.empty()) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
      for (const std::int64_t numel : kLengths) {
        terms.emplace_back(dtype, numel, size, std::initializer_list<ReduceOp>{ReduceOp::kSum});
      }
    }
  }
  return terms;
}

Bytes part_of(const Bytes& bytes, Range range, std::size_t element) {
  return {bytes.begin() + range.begin * static_cast<std::int64_t>(element),
          bytes.begin() + range.end * static_cast<std::int64_t>(element)};
}

void use_ucx() {
  setenv("TRIREME_TEST_LAYOUT", "ucx", 1);
}

class AlgorithmTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(AlgorithmTest, GivesTheReferenceBits) {
  use_ucx();
  const auto [name, ranks] = GetParam();
  const std::vector<Terms>& terms = terms_for(ranks);
  const auto check = [&terms](World& world) {
    const int size = world.size();
    const int rank = world.rank();
    for (const Terms& each : terms) {
      const auto& [dtype, numel, inputs, all_reduced] = each;
      const std::size_t element = dtype_bytes(dtype);
      const Bytes& reduced = all_reduced.at(ReduceOp::kSum);
      const std::string where = detail::concat(dtype_name(dtype), " x ", numel, " rank ", rank);

      Bytes data = inputs[index(rank)];
      world.all_reduce(Span(data.data(), numel, dtype)).wait();
      EXPECT_TRUE(data == reduced) << "all_reduce " << where;

      const Range mine = even_range(numel, size, rank);
      Bytes part(static_cast<std::size_t>(mine.size()) * element);
      world
          .reduce_scatter(ConstSpan(inputs[index(rank)].data(), numel, dtype),
                          Span(part.data(), mine.size(), dtype))
          .wait();
      EXPECT_TRUE(part == part_of(reduced, mine, element)) << "reduce_scatter " << where;

      Bytes whole(reduced.size());
      world.all_gather(ConstSpan(part.data(), mine.size(), dtype), Span(whole.data(), numel, dtype))
          .wait();
      EXPECT_TRUE(whole == reduced) << "all_gather " << where;

      data = inputs[index(rank)];
      world.broadcast(Span(data.data(), numel, dtype), size - 1).wait();
      EXPECT_TRUE(data == inputs.back()) << "broadcast " << where;

      data = inputs[index(rank)];
      world.reduce(Span(data.data(), numel, dtype), size / 2).wait();
      EXPECT_TRUE(data == (rank == size / 2 ? reduced : inputs[index(rank)])) << "reduce " << where;
    }
  };
  fork_world(ranks, check, [name = name](InitOptions& options) { options.algorithm = name; });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    AlgorithmTest,
    ::testing::Combine(::testing::Values("auto", "direct", "tree", "doubling", "aggregator"),
                       ::testing::Values(2, 3, 5)),
    [](const auto& test) {
      return detail::concat(std::get<0>(test.param), "_", std::get<1>(test.param));
    });

TEST(RingTest, AddsUpWithinRoundingAndGathersExactly) {
  use_ucx();
  for (const int size : {2, 3, 5}) {
    const std::vector<Terms>& terms = terms_for(size);
    fork_world(
        size,
        [size, &terms](World& world) {
          for (const Terms& each : terms) {
            if (each.dtype != Dtype::kFloat32) {
              continue;
            }
            const std::int64_t numel = each.numel;
            std::vector<std::vector<float>> inputs;
            for (const Bytes& bytes : each.inputs) {
              inputs.emplace_back(static_cast<std::size_t>(numel));
              std::memcpy(inputs.back().data(), bytes.data(), bytes.size());
            }
            std::vector<float> data = inputs[index(world.rank())];
            world.all_reduce(data).wait();
            for (std::size_t i = 0; i < data.size(); ++i) {
              double sum = 0;
              double magnitude = 0;
              for (const auto& input : inputs) {
                sum += input[i];
                magnitude += std::fabs(input[i]);
              }
              // Each of size - 1 additions rounds once, by half a unit of at most the sum of the
              // magnitudes.
              ASSERT_NEAR(data[i], sum, magnitude * size * 0x1p-24) << i << " of " << numel;
            }
            const Range mine = even_range(numel, size, world.rank());
            const std::vector<float> part(data.begin() + mine.begin, data.begin() + mine.end);
            std::vector<float> whole(data.size());
            world.all_gather(part, whole).wait();
            // The same bits on every rank.
            EXPECT_EQ(std::memcmp(whole.data(), data.data(), data.size() * sizeof(float)), 0);
          }
        },
        [](InitOptions& options) { options.algorithm = "ring"; });
  }
}

// From 17 ranks on announcements are passed on, whole: nobody knows who will need which part.
TEST(ManyRanks, AddUpAndGatherUnevenParts) {
  use_ucx();
  constexpr int kRanks = 18;
  fork_world(kRanks, [](World& world) {
    // Below, at and above what travels with the announcements; some ranks have nothing.
    for (const std::int64_t total : {0, 5, 1023, 1024, 1025, 8191, 70'001}) {
      Counts counts(kRanks, 0);
      for (std::int64_t left = total, rank = 0; left > 0; rank = (rank + 5) % kRanks) {
        const std::int64_t some = std::min(left, total / 7 + 1);
        counts[static_cast<std::size_t>(rank)] += some;
        left -= some;
      }
      std::int64_t begin = 0;
      for (int rank = 0; rank < world.rank(); ++rank) {
        begin += counts[index(rank)];
      }
      // Exact in any order: sum over ranks of (i % 101 + rank).
      const auto sum = [](std::int64_t i) {
        return static_cast<float>(kRanks * (i % 101) + kRanks * (kRanks - 1) / 2);
      };
      std::vector<float> data(static_cast<std::size_t>(total));
      for (std::int64_t i = 0; i < total; ++i) {
        data[static_cast<std::size_t>(i)] = static_cast<float>(i % 101 + world.rank());
      }
      std::vector<float> part(static_cast<std::size_t>(counts[index(world.rank())]));
      std::vector<float> whole(data.size());
      world.reduce_scatter(data, part, ReduceOp::kSum, counts).wait();
      Work gathering = world.all_gather(part, whole, counts);
      Work reducing = world.all_reduce(data);
      gathering.wait();
      reducing.wait();
      for (std::size_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(part[i], sum(begin + static_cast<std::int64_t>(i))) << i << " of " << total;
      }
      for (std::int64_t i = 0; i < total; ++i) {
        ASSERT_EQ(data[static_cast<std::size_t>(i)], sum(i)) << i << " of " << total;
      }
      EXPECT_EQ(whole, data) << total;
    }
  });
}

// A rank alone adds up what it has; so many ranges and such a length fill an announcement.
TEST(OneRank, HasRoomForWhatItSays) {
  use_ucx();
  fork_world(1, [](World& world) {
    for (const std::int64_t numel : {8192, 8193, 12'000, 16'383, 16'384, 16'385}) {
      std::vector<Range> absent;
      for (std::int64_t i = 0; i < 1000; ++i) {
        absent.push_back({8 * i, 8 * i + 1});
      }
      std::vector<float> data(static_cast<std::size_t>(numel), 3);
      std::vector<float> output(data.size(), 5);
      world.reduce_scatter(data, output, ReduceOp::kSum, {}, {.absent = absent}).wait();
      world.all_reduce(data, ReduceOp::kSum, {.absent = absent}).wait();
      for (std::int64_t i = 0; i < numel; ++i) {
        EXPECT_EQ(output[static_cast<std::size_t>(i)], i % 8 == 0 && i < 8000 ? 5 : 3) << i;
      }
      EXPECT_EQ(data, std::vector<float>(data.size(), 3));
    }
  });
}

// Messages are cut over the interfaces: the pieces of a call, and what is left of them.
TEST(SeveralInterfaces, CutAlikeOnBothSides) {
  use_ucx();
  for (const std::size_t rails : {2, 3}) {
    fork_world(
        3,
        [](World& world) {
          constexpr std::int64_t kElement = sizeof(float);
          for (const int kibibytes : {127, 128, 256, 384, 512, 2048}) {
            for (const std::int64_t more : {-1, 0, 1, 1031}) {
              const std::int64_t numel =
                  (static_cast<std::int64_t>(kibibytes) << 10) / kElement + more;
              const Counts counts = {numel, 1, numel + 7};
              const std::int64_t total = 2 * numel + 8;
              const std::int64_t begin = world.rank() == 0 ? 0 : numel + world.rank() - 1;
              std::vector<float> data(static_cast<std::size_t>(total));
              for (std::int64_t i = 0; i < total; ++i) {
                data[static_cast<std::size_t>(i)] = static_cast<float>(i % 1009 + world.rank());
              }
              const auto sum = [](std::int64_t i) {
                return static_cast<float>(3 * (i % 1009) + 3);
              };
              std::vector<float> part(static_cast<std::size_t>(counts[index(world.rank())]));
              std::vector<float> whole(data.size());
              std::vector<float> root_data = data;
              world.reduce_scatter(data, part, ReduceOp::kSum, counts).wait();
              Work gathering = world.all_gather(part, whole, counts);
              Work telling = world.broadcast(root_data, 1);
              gathering.wait();
              telling.wait();
              for (std::int64_t i = 0; i < total; ++i) {
                const auto at = static_cast<std::size_t>(i);
                ASSERT_EQ(whole[at], sum(i)) << i << " of " << total;
                ASSERT_EQ(root_data[at], static_cast<float>(i % 1009 + 1)) << i << " of " << total;
              }
              ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin));
            }
          }
        },
        [rails](InitOptions& options) { options.interfaces.assign(rails, "lo"); });
  }
}

TEST(RingTest, SaysThatItsOrderDiffers) {
  use_ucx();
  ::testing::internal::CaptureStderr();
  fork_world(
      2, [](World&) {}, [](InitOptions& options) { options.algorithm = "ring"; });
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string warning = "\"ring\" sums in an order of its own";
  const auto first = said.find(warning);
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find(warning, first + 1), std::string::npos) << "once is enough: " << said;
}

TEST(AlgorithmNames, AreListedWhereOneIsWrong) {
  use_ucx();
  const std::string message = testing::message_of<ConfigError>([] {
    InitOptions options = testing::options_for(testing::unique_job(), 0, 1);
    options.algorithm = "fastest";
    init(options);
  });
  for (const char* part : {"fastest", "direct", "ring", "tree", "doubling", "aggregator"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace trireme
