#include "trireme/optim/schedule.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "trireme/core/error.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/optim/moving_average.h"

namespace trireme {
namespace {

TEST(Schedule, StepsDown) {
  const Schedule schedule = Schedule::step(10, 0.5);
  EXPECT_EQ(schedule.factor(0), 1);
  EXPECT_EQ(schedule.factor(9), 1);
  EXPECT_EQ(schedule.factor(10), 0.5);
  EXPECT_EQ(schedule.factor(39), 0.125);
}

TEST(Schedule, StepsDownAtMilestones) {
  const Schedule schedule = Schedule::multi_step({5, 7}, 0.1);
  EXPECT_EQ(schedule.factor(4), 1);
  EXPECT_DOUBLE_EQ(schedule.factor(5), 0.1);
  EXPECT_DOUBLE_EQ(schedule.factor(7), 0.01);
}

TEST(Schedule, FollowsACosineAndALine) {
  const Schedule cosine = Schedule::cosine(100, 0.2);
  const Schedule linear = Schedule::linear(100, 0.2);
  for (int at = 0; at <= 150; ++at) {
    const double progress = std::min(1.0, at / 100.0);
    EXPECT_NEAR(
        cosine.factor(at), 0.2 + 0.8 * (1 + std::cos(std::numbers::pi * progress)) / 2, 1e-12);
    EXPECT_NEAR(linear.factor(at), 1 - 0.8 * progress, 1e-12);
  }
}

TEST(Schedule, WarmsUpAndThenBegins) {
  const Schedule schedule = Schedule::step(10, 0.5).with_warm_up(4, 0.2);
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.factor(2), 0.6);
  EXPECT_EQ(schedule.factor(4), 1);
  EXPECT_EQ(schedule.factor(14), 0.5);
}

TEST(Schedule, RunsOneCycle) {
  const Schedule schedule = Schedule::one_cycle(100, 0.3, 0.04, 0.001);
  EXPECT_NEAR(schedule.factor(0), 0.04, 1e-12);
  EXPECT_NEAR(schedule.factor(29), 1, 1e-12);
  EXPECT_NEAR(schedule.factor(99), 0.001, 1e-12);
  for (int at = 1; at < 100; ++at) {
    EXPECT_EQ(schedule.factor(at) > schedule.factor(at - 1), at <= 29) << at;
  }
  EXPECT_EQ(Schedule::one_cycle(1, 0.3).factor(0), 1);  // torch's would be the end
}

TEST(Schedule, GoesRoundInTriangles) {
  const Schedule schedule = Schedule::cyclic(4, 0.2);
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.factor(4), 1);
  EXPECT_DOUBLE_EQ(schedule.factor(6), 0.6);
  EXPECT_DOUBLE_EQ(schedule.factor(8), 0.2);
  EXPECT_DOUBLE_EQ(schedule.factor(13), schedule.factor(5));
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Schedule::step(0), ConfigError);
  EXPECT_THROW(Schedule::multi_step({7, 5}), ConfigError);
  EXPECT_THROW(Schedule::one_cycle(10, 1.5), ConfigError);
  EXPECT_THROW(Schedule::constant().factor(-1), ConfigError);
}

TEST(ReduceOnPlateau, ReducesAfterItsPatience) {
  ReduceOnPlateau plateau({.gamma = 0.5, .patience = 2});
  for (const double loss : {1.0, 0.9, 0.9, 0.9}) {
    plateau.observe(loss);
    EXPECT_EQ(plateau.factor(), 1);
  }
  const auto saved = plateau.state();
  plateau.observe(0.9);
  EXPECT_EQ(plateau.factor(), 0.5);
  ReduceOnPlateau resumed({.gamma = 0.5, .patience = 2});
  resumed.restore(saved);
  resumed.observe(0.9);
  EXPECT_EQ(resumed.factor(), 0.5);
}

TEST(ReduceOnPlateau, ForgetsAFirstMetricThatIsNotANumber) {
  for (const bool larger : {false, true}) {
    ReduceOnPlateau plateau({.gamma = 0.5, .patience = 1, .larger_is_better = larger});
    plateau.observe(NAN);
    for (int i = 1; i <= 20; ++i) {  // each better than all before it
      plateau.observe(larger ? i : 1.0 / i);
      EXPECT_EQ(plateau.factor(), 1) << i;
    }
    // Later ones count as no improvement, as all that are not better do.
    plateau.observe(NAN);
    EXPECT_EQ(plateau.factor(), 1);
    plateau.observe(NAN);
    EXPECT_EQ(plateau.factor(), 0.5);
    plateau.observe(larger ? 21 : 0.01);
    EXPECT_EQ(plateau.state().bad, 0);
  }
  // A run that was saved by an older version.
  ReduceOnPlateau resumed({.gamma = 0.5, .patience = 0});
  resumed.restore({.factor = 1, .best = NAN, .bad = 0, .seen = true});
  resumed.observe(1.0);
  resumed.observe(0.5);
  EXPECT_EQ(resumed.factor(), 1);
}

TEST(ScaledRate, GrowsWithTheWorld) {
  EXPECT_EQ(scaled_rate(0.1, 4, WorldScaling::kNone), 0.1);
  EXPECT_EQ(scaled_rate(0.1, 4, WorldScaling::kLinear), 0.4);
  EXPECT_EQ(scaled_rate(0.1, 4, WorldScaling::kSquareRoot), 0.2);
}

TEST(LossScaler, BacksOffAndGrowsInPowersOfTwo) {
  LossScaler scaler({.initial = 8, .growth_interval = 3, .least = 2, .most = 16});
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_TRUE(scaler.update(false));
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 8);
  for (int i = 0; i < 5; ++i) {
    scaler.update(true);
  }
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_EQ(scaler.state().skipped, 6);
  EXPECT_EQ(scaler.unscale() * scaler.scale(), 1);
  EXPECT_THROW(LossScaler({.initial = 1000}), ConfigError);
}

TEST(MovingAverage, FollowsItsFormula) {
  std::vector<float> average = {1, 2, 3};
  const std::vector<float> values = {3, 2, 1};
  update_moving_average(Dtype::kFloat32, average.data(), values.data(), 3, 0.75);
  EXPECT_EQ(average, (std::vector<float>{1.5F, 2, 2.5F}));
  EXPECT_THROW(update_moving_average(Dtype::kInt32, average.data(), values.data(), 3, 0.5),
               ConfigError);
}

}  // namespace
}  // namespace trireme
