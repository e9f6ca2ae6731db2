// What an owner does, step by step, against the rules in words.

#include "server/clock_table.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using Act = ClockTable::Act;

std::vector<Act> all_acts(ClockTable& table) {
  std::vector<Act> acts;
  while (const auto act = table.next()) {
    acts.push_back(*act);
  }
  return acts;
}

Act apply(int worker, std::int64_t clock) {
  return {Act::Kind::kApply, worker, clock};
}
Act answer(int worker, std::int64_t clock) {
  return {Act::Kind::kAnswer, worker, clock};
}

TEST(ClockTable, AppliesAStepWhenAllHaveSentIt) {
  ClockTable table(2, 0, Order::kClock);
  table.came(1);
  EXPECT_EQ(all_acts(table), std::vector<Act>{});
  table.came(0);
  EXPECT_EQ(all_acts(table), (std::vector<Act>{apply(-1, 0), answer(0, 0), answer(1, 0)}));
  EXPECT_EQ(table.version_for(1), 1);
}

TEST(ClockTable, LetsAWorkerRunAheadByTheBound) {
  ClockTable table(2, 2, Order::kClock);
  for (std::int64_t clock = 0; clock < 2; ++clock) {
    table.came(0);
    EXPECT_EQ(all_acts(table), std::vector<Act>{answer(0, clock)});
    EXPECT_EQ(table.version_for(clock + 1), 0);
  }
  table.came(0);  // step 3 needs the weights after step 0, which worker 1 has not sent
  EXPECT_EQ(all_acts(table), std::vector<Act>{});
  EXPECT_EQ(table.slowest(), 1);
  EXPECT_TRUE(table.waits(0));
  table.came(1);
  EXPECT_EQ(all_acts(table), (std::vector<Act>{apply(-1, 0), answer(0, 2), answer(1, 0)}));
  EXPECT_EQ(table.version_for(3), 1);
  EXPECT_EQ(table.oldest_version(), 0);  // worker 1 asks next for that of its step 2
}

TEST(ClockTable, DoesNotWaitForThoseWhoHaveLeft) {
  for (const Order order : {Order::kClock, Order::kArrival}) {
    ClockTable table(2, 0, order);
    table.came(0);
    all_acts(table);
    table.leaves(1);
    const std::vector<Act> acts = all_acts(table);
    ASSERT_FALSE(acts.empty());
    EXPECT_EQ(acts.back(), answer(0, 0));
    EXPECT_FALSE(table.waits(0));
  }
}

// Whatever comes: each push is applied once and in its worker's order, and nobody that has an
// answer for step c + 1 is further than the bound from the slowest.
TEST(ClockTable, ArrivalsKeepTheBound) {
  std::mt19937 random(7);
  for (const std::int64_t bound : {Stale::kNoBound, std::int64_t{0}, std::int64_t{2}}) {
    ClockTable table(3, bound, Order::kArrival);
    std::vector<std::int64_t> sent(3), applied(3), answered(3);
    std::int64_t widest = 0;
    for (int i = 0; i < 3000; ++i) {
      // The first one is slow.
      const auto worker = std::discrete_distribution<int>({1, 4, 4})(random);
      const auto w = static_cast<std::size_t>(worker);
      if (sent[w] > answered[w]) {
        continue;  // it waits
      }
      table.came(worker);
      ++sent[w];
      for (const Act& act : all_acts(table)) {
        const auto a = static_cast<std::size_t>(act.worker);
        auto& done = act.kind == Act::Kind::kApply ? applied : answered;
        ASSERT_EQ(act.clock, done[a]++);
        const std::int64_t slowest = *std::min_element(applied.begin(), applied.end());
        if (act.kind == Act::Kind::kAnswer) {
          widest = std::max(widest, act.clock + 1 - slowest);
        }
      }
      ASSERT_EQ(sent, applied);
    }
    if (bound == Stale::kNoBound) {
      EXPECT_GT(widest, 100);
    } else {
      EXPECT_EQ(widest, bound);
    }
  }
}

// A replay that is interrupted ends where its ranks do.
TEST(ClockTable, FollowsARecordWithoutThoseWhoHaveLeft) {
  ClockTable table(2, Stale::kNoBound, Order::kArrival);
  const std::vector<Act> record = {apply(1, 0),
                                   answer(1, 0),
                                   apply(1, 1),
                                   answer(1, 1),
                                   apply(1, 2),
                                   answer(1, 2),
                                   apply(0, 0),
                                   answer(0, 0)};
  table.follow(record);
  table.came(1);
  table.came(0);
  EXPECT_EQ(all_acts(table), (std::vector<Act>{record[0], record[1]}));
  table.leaves(1);
  EXPECT_EQ(all_acts(table), (std::vector<Act>{record[6], record[7]}));
}

TEST(ClockTable, FollowsARecordWhateverComesFirst) {
  ClockTable table(2, Stale::kNoBound, Order::kArrival);
  const std::vector<Act> record = {
      apply(1, 0), answer(1, 0), apply(0, 0), apply(1, 1), answer(0, 0), answer(1, 1)};
  table.follow(record);
  table.came(0);
  EXPECT_EQ(all_acts(table), std::vector<Act>{});
  table.came(1);
  EXPECT_EQ(all_acts(table), (std::vector<Act>{record.begin(), record.begin() + 3}));
  table.came(1);
  EXPECT_EQ(all_acts(table), (std::vector<Act>{record.begin() + 3, record.end()}));
  table.came(0);
  EXPECT_THROW(table.next(), ConfigError);  // there is no more
}

}  // namespace
}  // namespace trireme::detail
