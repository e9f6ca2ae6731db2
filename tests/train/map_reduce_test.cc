// What ranks make of partitions together is what one loop over them makes, bit for bit.

#include "trireme/train/map_reduce.h"

#include <cstring>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <signal.h>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"

namespace trireme::map_reduce_test {
namespace {

using testing::fork_world;
using torch::Tensor;

constexpr int kWorlds[] = {1, 2, 3, 4};

// Of every dtype, with sizes that no number of ranks divides, and zeros of both signs.
std::vector<Tensor> terms_of(std::int64_t partition) {
  auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(partition + 11));
  auto floats = torch::randn({7, 5}, random, torch::kFloat);
  floats.flatten()[3] = -0.0F;
  return {floats.t(),
          torch::randn({13}, random, torch::kDouble) * 1e8,
          torch::randint(-1000, 1000, {3, 1}, random, torch::kLong),
          torch::randn({17}, random, torch::kFloat).to(torch::kBFloat16),
          torch::empty({0}),
          torch::randn({}, random, torch::kFloat)};
}

std::vector<Tensor> sum_in_a_loop(std::int64_t partitions) {
  std::vector<Tensor> sums;
  for (std::int64_t p = 0; p < partitions; ++p) {
    auto terms = terms_of(p);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      auto term = terms[i].scalar_type() == torch::kBFloat16 ? terms[i].to(torch::kFloat)
                                                             : terms[i].contiguous();
      if (p == 0) {
        sums.push_back(term.clone());
      } else {
        sums[i] = sums[i] + term;
      }
    }
  }
  return sums;
}

void expect_same_bytes(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].sizes(), expected[i].sizes());
    ASSERT_EQ(found[i].scalar_type(), expected[i].scalar_type());
    const Tensor a = found[i].contiguous(), b = expected[i].contiguous();
    EXPECT_TRUE(a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0) << i;
  }
}

TEST(MapSum, IsTheSumInTheOrderOfThePartitions) {
  for (const int ranks : kWorlds) {
    for (const std::int64_t partitions : {1, 2, 3, 13}) {
      const auto expected = sum_in_a_loop(partitions);
      fork_world(ranks, [&](World& world) {
        expect_same_bytes(map_sum(world, partitions, terms_of), expected);
      });
    }
  }
}

TEST(MapReduce, FoldsInTheOrderOfThePartitions) {
  for (const int ranks : kWorlds) {
    fork_world(ranks, [&](World& world) {
      const auto text = map_reduce(
          world,
          7,
          [](std::int64_t partition) { return std::string(1, static_cast<char>('a' + partition)); },
          std::string("<"),
          [](std::string& all, const std::string& next) { all += next; });
      EXPECT_EQ(text, "<abcdefg");
      const auto powers = map_reduce(
          world,
          5,
          [](std::int64_t partition) { return std::vector<double>(2, double(partition)); },
          std::vector<double>{1, 2},
          [](std::vector<double>& all, const std::vector<double>& next) {
            for (std::size_t i = 0; i < all.size(); ++i) {
              all[i] = 10 * all[i] + next[i];
            }
          });
      EXPECT_EQ(powers, (std::vector<double>{101234, 201234}));
    });
  }
}

TEST(MapSum, WhatOneRankThrowsIsThrownOnAll) {
  fork_world(3, [](World& world) {
    const auto error = testing::message_of<DataError>([&] {
      map_sum(world, 8, [](std::int64_t partition) -> std::vector<Tensor> {
        if (partition == 5) {
          throw DataError("data.csv", 0, "partition 5 cannot be read");
        }
        return {torch::ones({2})};
      });
    });
    EXPECT_NE(error.find("partition 5 cannot be read"), std::string::npos) << error;
  });
}

TEST(MapSum, RefusesTensorsOfOtherShapes) {
  fork_world(2, [](World& world) {
    const auto error = testing::message_of<ConfigError>([&] {
      map_sum(world, 4, [](std::int64_t partition) {
        return std::vector<Tensor>{torch::ones({partition == 3 ? 3 : 2})};
      });
    });
    EXPECT_NE(error.find("found for partition 3: "), std::string::npos) << error;
    EXPECT_NE(testing::message_of<ConfigError>([&] {
                map_sum(world, 0, terms_of);
              }).find("partitions: expected at least 1, found 0"),
              std::string::npos);
  });
}

TEST(MapReduce, PartitionsOfALostRankGoToOthers) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/computed";
  testing::Program job({testing::trireme_binary(),
                        "run",
                        "--elastic",
                        "1:3",
                        "--",
                        testing::test_binary("map_worker"),
                        file});
  const auto computed = [&] {
    std::map<long, int> times;
    std::ifstream lines(file);
    for (long partition = 0; lines >> partition;) {
      ++times[partition];
    }
    return times;
  };
  ASSERT_TRUE(testing::comes_true([&] { return computed().size() >= 20; }));
  kill(job.children().back(), SIGKILL);
  ASSERT_TRUE(testing::comes_true([&] { return computed().count(130) > 0; }));
  kill(job.children().front(), SIGKILL);
  const testing::Finished finished = job.wait(std::chrono::milliseconds(60'000));
  EXPECT_EQ(finished.code, 0) << finished.err;

  float sum = 0;
  std::string text = "of";
  for (int p = 0; p < 60; ++p) {
    sum = p == 0 ? 1.0F / 3 : sum + 1.0F / static_cast<float>(p + 3);
    text += " " + std::to_string(p);
  }
  char expected[1000];
  std::snprintf(expected, sizeof(expected), "sum %a, text %s.", double(sum), text.c_str());
  EXPECT_NE(finished.out.find(expected), std::string::npos) << finished.out << "\n" << expected;
  // The round at hand may be computed again after each loss, and no other.
  int again = 0;
  const auto times = computed();
  EXPECT_EQ(times.size(), 120U);
  for (const auto& [partition, count] : times) {
    again += count - 1;
  }
  EXPECT_LE(again, 3 + 2);
}

}  // namespace
}  // namespace trireme::map_reduce_test
