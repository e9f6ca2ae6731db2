// Sums in which ranks leave elements out, that go on from an accumulator, or that widen 16-bit
// inputs: every result is compared with a plain loop over the chain.

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::message_of;
using testing::spawn_world;

// Values whose sum depends on the order; the same for everyone who asks for the same `who`.
std::vector<float> values(std::int64_t numel, int who) {
  std::mt19937 random(static_cast<unsigned>(who) * 7919U + 1U);
  std::vector<float> result(static_cast<std::size_t>(numel));
  for (float& value : result) {
    const float magnitude = static_cast<float>(random() % 20001) - 10000.0F;
    value = magnitude * (static_cast<float>(1 << random() % 12) * 0x1p-20F);
    if (random() % 50 == 0) {
      value = -0.0F;
    }
  }
  return result;
}

// Some ranges, different for every `who`: none, a few, or everything.
std::vector<Range> ranges(std::int64_t numel, int who) {
  if (who % 4 == 1) {
    return {};
  }
  if (who % 4 == 3) {
    return {{0, numel}};
  }
  return {{numel / 10, numel / 7},
          {numel / 7, numel / 3},
          {numel / 2, std::min(numel, numel / 2 + who % 5)}};
}

bool contains(const std::vector<Range>& list, std::int64_t element) {
  for (const Range& range : list) {
    if (element >= range.begin && element < range.end) {
      return true;
    }
  }
  return false;
}

// The chain at `element`, of what the ranks do not leave out; `untouched` where there is no term.
float chain(std::int64_t element,
            const std::vector<std::vector<float>>& inputs,
            const std::vector<std::vector<Range>>& absent,
            bool accumulated,
            float old,
            float untouched) {
  bool any = accumulated;
  float sum = old;
  const auto group = static_cast<std::size_t>(testing::sum_group());
  for (std::size_t first = 0; first < inputs.size(); first += group) {
    bool any_here = false;
    float here = 0;
    for (std::size_t rank = first; rank < std::min(inputs.size(), first + group); ++rank) {
      if (!contains(absent[rank], element)) {
        const float next = inputs[rank][static_cast<std::size_t>(element)];
        here = any_here ? here + next : next;
        any_here = true;
      }
    }
    if (any_here) {
      sum = any ? sum + here : here;
      any = true;
    }
  }
  return any ? sum : untouched;
}

class SumTermsTest : public ::testing::TestWithParam<std::tuple<int, std::int64_t, bool>> {};

// What the ranks bring and what they leave out; made once, not by every rank.
struct Round {
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<Range>> absent;
};

TEST_P(SumTermsTest, SkipAbsentRanksAndGoOnFromTheAccumulator) {
  const auto [size, numel, shared] = GetParam();
  std::array<Round, 4> rounds;
  for (int round = 0; round < 4; ++round) {
    for (int peer = 0; peer < size; ++peer) {
      rounds[static_cast<std::size_t>(round)].inputs.push_back(values(numel, peer + 100 * round));
      rounds[static_cast<std::size_t>(round)].absent.push_back(ranges(numel, peer + round));
    }
  }
  const std::vector<float> before = values(numel, 77);
  spawn_world(size, [&, size = size, numel = numel, shared = shared](World& world) {
    const int rank = world.rank();
    const SharedBuffer buffer = world.allocate(static_cast<std::size_t>(numel) * 4);
    for (int round = 0; round < 4; ++round) {
      const auto& [inputs, absent] = rounds[static_cast<std::size_t>(round)];
      std::vector<float> own = inputs[static_cast<std::size_t>(rank)];
      ConstSpan input(own);
      if (shared) {
        std::memcpy(buffer.data(), own.data(), own.size() * 4);
        input = buffer.span(Dtype::kFloat32, numel);
      }
      const Range mine = even_range(numel, size, rank);
      std::vector<float> output(before.begin() + mine.begin, before.begin() + mine.end);
      const std::vector<Range> fresh = ranges(numel, round);
      const bool accumulate = round % 2 == 1;
      world
          .reduce_scatter(
              input,
              output,
              ReduceOp::kSum,
              {},
              {.absent = ranges(numel, rank + round), .accumulate = accumulate, .fresh = fresh})
          .wait();
      for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        const float old = before[static_cast<std::size_t>(i)];
        const float expected =
            chain(i, inputs, absent, accumulate && !contains(fresh, i), old, old);
        const float found = output[static_cast<std::size_t>(i - mine.begin)];
        if (std::memcmp(&expected, &found, 4) != 0) {
          FAIL() << "element " << i << " round " << round << ": " << expected << " " << found;
        }
      }

      const Span data = shared ? buffer.span(Dtype::kFloat32, numel) : Span(own);
      world.all_reduce(data, ReduceOp::kSum, {.absent = ranges(numel, rank + round)}).wait();
      const auto* sums = reinterpret_cast<const float*>(data.bytes());
      for (std::int64_t i = 0; i < numel; ++i) {
        const float anything = sums[i];  // where no rank contributes
        const float expected = chain(i, inputs, absent, false, 0, anything);
        if (std::memcmp(&expected, &sums[i], 4) != 0) {
          FAIL() << "element " << i << ": " << expected << " " << sums[i];
        }
      }
      world.barrier().wait();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         SumTermsTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Values(1, 105, 4099, 300'007),
                                            ::testing::Bool()),
                         [](const auto& tested) {
                           return "Ranks" + std::to_string(std::get<0>(tested.param)) + "Numel" +
                                  std::to_string(std::get<1>(tested.param)) +
                                  (std::get<2>(tested.param) ? "Shared" : "Ordinary");
                         });

TEST(SumTerms, SixteenBitInputsAddUpInFloat32) {
  constexpr std::int64_t kNumel = 10'007;
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    spawn_world(3, [&](World& world) {
      std::vector<testing::Bytes> inputs;
      for (int peer = 0; peer < 3; ++peer) {
        inputs.push_back(testing::make_input(dtype, kNumel, peer));
      }
      const Range mine = even_range(kNumel, 3, world.rank());
      std::vector<float> output(static_cast<std::size_t>(mine.size()), 0.125F);
      const testing::Bytes& own = inputs[static_cast<std::size_t>(world.rank())];
      for (const bool accumulate : {false, true}) {
        const std::vector<float> before = output;
        world
            .reduce_scatter(ConstSpan(own.data(), kNumel, dtype),
                            output,
                            ReduceOp::kSum,
                            {},
                            {.accumulate = accumulate})
            .wait();
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
          const auto at = static_cast<std::size_t>(i - mine.begin);
          float sum = before[at];
          float here = 0;
          for (int peer = 0; peer < 3; ++peer) {
            std::uint16_t bits = 0;
            std::memcpy(
                &bits, &inputs[static_cast<std::size_t>(peer)][2 * static_cast<std::size_t>(i)], 2);
            const float next = dtype == Dtype::kFloat16
                                   ? static_cast<float>(testing::half_value(bits))
                                   : testing::bfloat16_value(bits);
            const bool first_of_group = peer % testing::sum_group() == 0;
            here = first_of_group ? next : here + next;
            if (peer == 2 || (peer + 1) % testing::sum_group() == 0) {
              sum = peer < testing::sum_group() && !accumulate ? here : sum + here;
            }
          }
          ASSERT_EQ(std::memcmp(&sum, &output[at], 4), 0) << i << ": " << sum << " " << output[at];
        }
      }
    });
  }
}

TEST(SumTerms, AreCheckedBeforeAnythingIsIssued) {
  const auto world = init();
  std::vector<float> data(10);
  std::vector<float> output(10);
  EXPECT_NE(message_of<ConfigError>([&] {
              world->all_reduce(data, ReduceOp::kSum, {.absent = {{5, 3}}}).wait();
            }).find("ascend"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] {
              world->all_reduce(data, ReduceOp::kMax, {.absent = {{3, 5}}}).wait();
            }).find("for sums"),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] {
              world->all_reduce(data, ReduceOp::kSum, {.accumulate = true}).wait();
            }).find("reduce_scatter"),
            std::string::npos);
}

// For ranks of one machine: layouts with machines filter it out.
TEST(SharedBuffer, CanBeSeenThroughAMappingThatCannotWrite) {
  testing::fork_world(2, [](World& everyone) {
    Communicator& world = everyone.machine();
    ASSERT_EQ(world.size(), 2);
    const SharedBuffer buffer = world.allocate(SharedBuffer::page_bytes());
    const std::byte* seen = buffer.whole_read_only();
    buffer.whole()[static_cast<std::size_t>(world.rank()) * buffer.size_bytes() + 5] =
        static_cast<std::byte>(world.rank() + 1);
    world.barrier().wait();
    EXPECT_EQ(seen[5], std::byte{1});
    EXPECT_EQ(seen[buffer.size_bytes() + 5], std::byte{2});
    EXPECT_DEATH(*const_cast<volatile std::byte*>(seen) = std::byte{9}, "");
    world.barrier().wait();
  });
}

}  // namespace
}  // namespace trireme
