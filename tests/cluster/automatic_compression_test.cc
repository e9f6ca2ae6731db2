// What --compress auto comes to: from figures that are made up, and measured between machines.

#include "trireme/train/automatic_compression.h"

#include <gtest/gtest.h>

#include "support/ranks.h"

namespace trireme::automatic_compression_test {
namespace {

using Costs = std::vector<CompressionCost>;

TEST(AutomaticCompression, IsTheCheapestThatSavesATenth) {
  const Costs costs = {{"bf16", 2, 1e-9}, {"int8", 1, 4e-9}};
  const auto chosen = [&](double byte_seconds, double exact_bytes = 4) {
    return cheapest_compression(byte_seconds, exact_bytes, costs).name;
  };
  // 12 MB/s: 333 ns an element as it is, 168 as bf16, 87 as int8.
  EXPECT_EQ(chosen(1 / 12e6), "int8");
  // 500 MB/s: 8, 5 and 6 ns.
  EXPECT_EQ(chosen(1 / 500e6), "bf16");
  // 2 GB/s: 2, 2 and 4.5 ns; 10 GB/s: 0.4, 1.2 and 4.1.
  EXPECT_EQ(chosen(1 / 2e9), "none");
  EXPECT_EQ(chosen(1 / 10e9), "none");
  // Of elements of two bytes, bf16 has as many.
  EXPECT_EQ(chosen(1 / 500e6, 2), "none");
  EXPECT_EQ(chosen(1 / 12e6, 2), "int8");
  // Less than a tenth of 4e-6 seconds is saved, and more than that.
  EXPECT_EQ(cheapest_compression(1e-6, 4, {{"a", 3, 0.7e-6}}).name, "none");
  EXPECT_EQ(cheapest_compression(1e-6, 4, {{"a", 3, 0.5e-6}}).name, "a");
  EXPECT_EQ(cheapest_compression(1e-6, 4, {}).name, "none");

  const std::string why = cheapest_compression(1 / 12e6, 4, costs).why;
  for (const char* part : {"333 ms as they are", "bf16 167 ms and 1 ms", "int8 83.3 ms and 4 ms"}) {
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
  EXPECT_EQ(why.find('\n'), std::string::npos);
}

TEST(AutomaticCompression, IsNoneOnOneMachine) {
  const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
  const CompressionChoice choice = automatic_compression({}, *alone);
  EXPECT_EQ(choice.name, "none");
  EXPECT_NE(choice.why.find("one machine"), std::string::npos) << choice.why;
}

// What it is depends on the machine; that all have the same does not.
TEST(AutomaticCompression, IsMeasuredBetweenMachinesAndTheSameOnAllRanks) {
  testing::fork_ranks(3, [&, job = testing::unique_job()](int rank) {
    const auto world = init(testing::options_for(job, rank, 3));
    ASSERT_FALSE(world->one_machine());
    const CompressionChoice choice = automatic_compression({}, *world);
    const std::vector<std::string> names = {"none", "bf16", "int8"};
    const auto found = std::find(names.begin(), names.end(), choice.name);
    ASSERT_NE(found, names.end()) << choice.name;
    EXPECT_NE(choice.why.find("a million gradients take"), std::string::npos) << choice.why;
    std::vector<std::int64_t> all(3);
    world->all_gather(std::vector<std::int64_t>{found - names.begin()}, all).wait();
    EXPECT_EQ(all[0], all[1]);
    EXPECT_EQ(all[0], all[2]);
  });
}

}  // namespace
}  // namespace trireme::automatic_compression_test
