#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "trireme/core/drill.h"
#include "trireme/core/error.h"

namespace trireme::drill_plan_test {
namespace {

std::string refusal(const std::string& text) {
  try {
    DrillPlan::parse(text, 1);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DrillPlan, IsRead) {
  const DrillPlan plan =
      DrillPlan::parse("kill:p=0.02;stop:500ms,p=1;disk-full;leave:p=1e-3;join", 7);
  ASSERT_EQ(plan.faults.size(), 5U);
  EXPECT_EQ(plan.seed, 7U);
  EXPECT_EQ(plan.faults[0].kind, DrillKind::kKill);
  EXPECT_EQ(plan.faults[0].probability, 0.02);
  EXPECT_EQ(plan.faults[1].seconds, 0.5);
  EXPECT_EQ(plan.faults[1].probability, 1);
  EXPECT_EQ(plan.faults[2].probability, 0.01);
  EXPECT_EQ(plan.faults[3].probability, 0.001);
  EXPECT_TRUE(plan.has(DrillKind::kJoin));
  EXPECT_EQ(DrillPlan::parse("stop", 1).faults[0].seconds, 2);
  const DrillPlan links = DrillPlan::parse("delay:70ms;drop:2%;corrupt:1e-6", 1);
  ASSERT_EQ(links.faults.size(), 3U);
  EXPECT_EQ(links.faults[0].seconds, 0.07);
  EXPECT_EQ(links.faults[0].probability, 0.01);
  EXPECT_EQ(links.faults[1].kind, DrillKind::kDrop);
  EXPECT_EQ(links.faults[1].probability, 0.02);
  EXPECT_EQ(links.faults[2].kind, DrillKind::kCorrupt);
  EXPECT_EQ(links.faults[2].probability, 1e-6);
  EXPECT_FALSE(DrillPlan::parse("stop", 1).has(DrillKind::kKill));
}

TEST(DrillPlan, MistakesAreNamed) {
  const std::map<std::string, std::vector<std::string>> cases = {
      {"",
       {"expected kill, stop, disk-full, leave, join, delay, drop, corrupt, kill-launcher or "
        "stop-launcher",
        "found \"\"",
        "in part 1"}},
      {"kill;kil", {"found \"kil\"", "in part 2 of \"kill;kil\"", "did you mean kill?"}},
      {"kill;", {"found \"\"", "in part 2"}},
      {"kill:p=0", {"a probability above 0 and at most 1", "found \"p=0\""}},
      {"kill:p=1.5", {"found \"p=1.5\""}},
      {"kill:p=x", {"found \"p=x\""}},
      {"kill:2s", {"the one thing that kill takes", "found \"2s\""}},
      {"kill:", {"found \"\""}},
      {"stop:2", {"a time such as 2s or 500ms", "found \"2\""}},
      {"stop:-1s", {"found \"-1s\""}},
      {"stop:s", {"found \"s\""}},
      {"kill;leave;kill:p=0.5", {"each kind of fault once", "kill again", "in part 3"}},
      {"delay:50", {"a time such as 2s or 500ms", "found \"50\""}},
      {"drop:101%", {"a probability above 0 and at most 1", "found \"101%\""}},
      {"drop:50ms", {"the one thing that drop takes", "found \"50ms\""}},
      {"kill;corrupt:2", {"found \"2\"", "in part 2"}},
      {"corrupt:often", {"found \"often\""}},
      {"kill-launcher:2s", {"the one thing that kill-launcher takes", "found \"2s\""}},
      {"stop-launchers", {"did you mean stop-launcher?"}},
      {"stop-launcher:2", {"a time such as 2s or 500ms", "found \"2\""}},
  };
  for (const auto& [text, parts] : cases) {
    for (const std::string& part : parts) {
      EXPECT_NE(refusal(text).find(part), std::string::npos) << text << ": " << refusal(text);
    }
  }
}

// By the frequencies that were asked for; each rank and each part of a step has its turn.
TEST(DrillPlan, HitsAsOftenAsItSays) {
  const DrillPlan plan = DrillPlan::parse("kill:p=0.02;leave:p=0.1", 3);
  constexpr int kSteps = 100'000;
  std::map<std::size_t, int> times;
  std::set<int> ranks;
  std::set<PulsePhase> phases;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    if (const auto hit = plan.in_step(step, 4)) {
      ++times[hit->fault];
      phases.insert(hit->phase);
      if (hit->fault == 0) {
        ranks.insert(hit->rank);
      } else {
        EXPECT_EQ(hit->rank, 0);
      }
    }
    EXPECT_FALSE(plan.in_save(step, 4));
  }
  // Within six standard deviations.
  EXPECT_NEAR(times[0], 2000, 6 * 44.3);
  EXPECT_NEAR(times[1], 9800, 6 * 94);
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(phases.size(), 5U);
}

// Each machine that may be hit has its turn, however many ranks there are, and rank 0 notes it.
TEST(DrillPlan, HitsLaunchersOfTheMachinesThatMayBeHit) {
  DrillPlan plan = DrillPlan::parse("kill-launcher:p=0.02;stop-launcher:700ms", 3);
  EXPECT_DOUBLE_EQ(plan.faults[1].seconds, 0.7);
  plan.machines = 4;
  constexpr int kSteps = 100'000;
  for (const int first : {0, 1}) {
    plan.first_machine = first;
    std::map<int, int> times;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const auto hit = plan.in_step(step, 8);
      if (hit && hit->fault == 0) {
        EXPECT_EQ(hit->rank, 0);
        ++times[hit->machine];
        EXPECT_EQ(plan.in_step(step, 2)->machine, hit->machine);
      }
    }
    const double each = 2000.0 / (4 - first);
    EXPECT_EQ(times.begin()->first, first);
    EXPECT_EQ(times.size(), static_cast<std::size_t>(4 - first));
    for (const auto& [machine, count] : times) {
      EXPECT_NEAR(count, each, 6 * std::sqrt(each)) << machine;
    }
  }
  EXPECT_EQ(DrillPlan::parse("kill:p=1", 3).in_step(1, 4)->machine, -1);
}

// At each point by itself, for every rank in its turn.
TEST(DrillPlan, KillsAtPointsAsOftenAsItSays) {
  const DrillPlan plan = DrillPlan::parse("kill:p=0.02", 3);
  constexpr int kSteps = 100'000;
  for (std::uint32_t point = 0; point < static_cast<std::uint32_t>(DrillPoint::kCount); ++point) {
    std::map<int, int> times;
    int together = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      if (const auto rank = plan.killed_at(static_cast<DrillPoint>(point), step, 4)) {
        ++times[*rank];
        together += plan.in_step(step, 4) ? 1 : 0;
      }
    }
    ASSERT_EQ(times.size(), 4U);
    for (const auto& [rank, count] : times) {
      EXPECT_NEAR(count, 500, 6 * 22.3) << rank;  // within six standard deviations
    }
    EXPECT_LT(together, 100);  // 40 are expected by chance
    EXPECT_FALSE(DrillPlan::parse("stop:p=1", 3).killed_at(static_cast<DrillPoint>(point), 1, 4));
  }
}

// For each message by itself, whatever else there is; every byte has its turn.
TEST(DrillPlan, FlipsBitsAsOftenAsItSays) {
  const DrillPlan plan = DrillPlan::parse("kill:p=1;corrupt:0.01", 3);
  const DrillPlan other = DrillPlan::parse("corrupt:0.01", 4);
  int times = 0;
  int same = 0;
  std::set<std::uint64_t> bits;
  for (std::uint64_t number = 0; number < 100'000; ++number) {
    const DrillPlan::Sent sent{1, 0, 2, 3, 8, number};
    const auto bit = plan.flips(sent, 24);
    EXPECT_EQ(bit, plan.flips(sent, 24));
    times += bit ? 1 : 0;
    same += bit && other.flips(sent, 24) ? 1 : 0;
    if (bit) {
      bits.insert(*bit);
    }
  }
  EXPECT_NEAR(times, 1000, 6 * 31.5);
  EXPECT_LT(same, 40);  // 10 are expected by chance
  EXPECT_EQ(bits.size(), 24U);
  EXPECT_EQ(*bits.rbegin(), 23U);
  EXPECT_FALSE(plan.flips({}, 0));
  EXPECT_FALSE(DrillPlan::parse("drop:p=1", 3).flips({}, 24));
}

TEST(DrillPlan, FollowsFromItsSeedAndTheStep) {
  const auto steps = [](std::uint64_t seed) {
    std::vector<std::int64_t> all;
    const DrillPlan plan = DrillPlan::parse("stop:p=0.1", seed);
    for (std::int64_t step = 0; step < 200; ++step) {
      if (plan.in_step(step, 3)) {
        all.push_back(step);
      }
    }
    return all;
  };
  EXPECT_EQ(steps(5), steps(5));
  EXPECT_NE(steps(5), steps(6));
  const DrillPlan saves = DrillPlan::parse("disk-full:p=1", 1);
  EXPECT_TRUE(saves.in_save(10, 2));
  EXPECT_FALSE(saves.in_step(10, 2));
}

}  // namespace
}  // namespace trireme::drill_plan_test
