// Who is measured when, and what the tables say of it.

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "samples.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

std::vector<int> numbers(int count) {
  std::vector<int> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(i);
  }
  return all;
}

TEST(TurnOrder, MeasuresEverySystemOnceInEveryRound) {
  for (int count = 0; count <= 6; ++count) {
    for (int rounds = 1; rounds <= 7; ++rounds) {
      for (int round = 0; round < rounds; ++round) {
        const auto order = turn_order(numbers(count), round, rounds);
        ASSERT_EQ(order.size(), static_cast<std::size_t>(count));
        EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), order.size())
            << count << " systems, round " << round << " of " << rounds;
      }
    }
  }
}

TEST(TurnOrder, BeginsEachRoundWithAnother) {
  for (int count = 1; count <= 6; ++count) {
    for (int rounds = 1; rounds <= 2 * count; ++rounds) {
      std::map<int, int> first;
      for (int round = 0; round < rounds; ++round) {
        ++first[turn_order(numbers(count), round, rounds).front()];
      }
      for (const auto& [system, times] : first) {
        EXPECT_LE(times, (rounds + count - 1) / count)
            << system << " of " << count << " systems in " << rounds << " rounds";
      }
    }
  }
}

TEST(TurnOrder, DoesNotAlwaysMeasureAfterTheSameOne) {
  for (int count = 3; count <= 6; ++count) {
    std::map<int, std::set<int>> before;
    for (int round = 0; round < 2; ++round) {
      const auto order = turn_order(numbers(count), round, 2);
      for (std::size_t i = 1; i < order.size(); ++i) {
        EXPECT_TRUE(before[order[i]].insert(order[i - 1]).second)
            << order[i] << " comes after " << order[i - 1] << " again";
      }
    }
  }
}

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoInTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

}  // namespace
}  // namespace trireme::bench
