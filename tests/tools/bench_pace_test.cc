// What `trireme bench sync` computes: ceilings of trainings with slow ranks, and bytes by formula.

#include <gtest/gtest.h>

#include "pace.h"
#include "sync_mode.h"
#include "trireme/core/error.h"

namespace trireme::bench {
namespace {

TEST(TimeUntilDone, IsTheSumOfTheSlowestWhereRanksWaitInEveryStep) {
  EXPECT_EQ(time_until_done({{1, 5, 1}, {4, 1, 2}}, 0), 4 + 5 + 2);
}

TEST(TimeUntilDone, IsThatOfTheSlowestRankWhereNobodyWaits) {
  EXPECT_EQ(time_until_done({{1, 5, 1}, {4, 1, 2}}, 3), 7);
  EXPECT_EQ(time_until_done({{1, 5, 1}, {4, 1, 3}}, 3), 8);
}

// By hand: rank 0 begins its third step when rank 1 has done its first.
TEST(TimeUntilDone, LetsARankBeAheadByTheBound) {
  EXPECT_EQ(time_until_done({{1, 1, 1}, {9, 1, 1}}, 1), 11);
  EXPECT_EQ(time_until_done({{1, 1, 8}, {9, 1, 1}}, 1), 9 + 8);
  EXPECT_EQ(time_until_done({{1, 1, 8}, {9, 1, 1}}, 2), 11);
}

TEST(TimeUntilDone, IsZeroWithoutSteps) {
  EXPECT_EQ(time_until_done({}, 0), 0);
  EXPECT_EQ(time_until_done({{}, {}}, 2), 0);
}

TEST(Pace, IsThatOfItsRank) {
  const Pace pace{.ms = 20, .slow_rank = 1, .factor = 3};
  EXPECT_EQ(pace.milliseconds(0, 5), 20);
  EXPECT_EQ(pace.milliseconds(1, 5), 60);
}

TEST(Pace, StallsAsOftenAsItSaysAndNeverBeforeTheFirstStep) {
  const Pace pace{.ms = 20, .probability = 0.1, .stall = 10};
  constexpr int kSteps = 20'000;
  double stalls = 0;
  double both = 0;
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(pace.milliseconds(0, step), 20 + 200 * pace.stalls(0, step));
    EXPECT_EQ(pace.stalls(0, -1 - step), 0);
    stalls += pace.stalls(0, step);
    both += pace.stalls(0, step) * pace.stalls(1, step);
  }
  // Five standard deviations of a binomial number: 0.0021 and 0.0007, in parts of all steps.
  EXPECT_NEAR(stalls / kSteps, 0.1, 0.0106);
  EXPECT_NEAR(both / kSteps, 0.01, 0.0036);
}

TEST(BytesByFormula, AreThoseOfTheDocuments) {
  const double parameters = 1000;
  const auto bytes = [&](const std::string& mode, int ranks) {
    return bytes_by_formula(SyncMode::parse(mode), ranks, parameters);
  };
  EXPECT_EQ(bytes("exact", 2), 4000);
  EXPECT_EQ(bytes("exact", 4), 6000);
  EXPECT_EQ(bytes("balance", 4), 6000);
  EXPECT_EQ(bytes("local:16", 2), 250);
  EXPECT_EQ(bytes("diloco:100", 4), 60);
  EXPECT_EQ(bytes("gossip:1", 2), 4000);
  EXPECT_EQ(bytes("gossip:2", 3), 4000);
  EXPECT_EQ(bytes("stale:3", 2), 4000);
  EXPECT_EQ(bytes("async", 2), 4000);
  EXPECT_EQ(bytes("exact", 1), 0);
  EXPECT_EQ(bytes("gossip:1", 1), 0);
}

TEST(SyncMode, RefusesWhatIsNone) {
  for (const char* text :
       {"", "exact:1", "local", "local:0", "local:x", "stale", "stale:-1", "no"}) {
    EXPECT_THROW(SyncMode::parse(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace trireme::bench
