// How often `trireme compare` calls one of two equally fast runs the faster one, where what
// disturbs them is slow and small beside what changes from step to step. The seed is fixed, so that
// what passes once passes always.

#include <cmath>
#include <iostream>
#include <numbers>

#include <gtest/gtest.h>

#include "speed.h"
#include "trireme/core/random.h"

namespace trireme::tools {
namespace {

double normal(RandomStream& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) *
         std::cos(2 * std::numbers::pi * random.uniform());
}

// Times of steps, with a disturbance of which each step keeps 0.9. A share of 0.5 makes it a fifth
// of the variance of their logarithms.
RunLog disturbed(int steps, double share, RandomStream& random) {
  constexpr double kKept = 0.9;
  RunLog log;
  double disturbance = normal(random);
  for (int step = 1; step <= steps; ++step) {
    disturbance = kKept * disturbance + std::sqrt(1 - kKept * kKept) * normal(random);
    const double took = 0.01 * std::exp(0.1 * (share * disturbance + normal(random)));
    for (const auto& [name, value] :
         {std::pair("seconds", took), std::pair("samples_per_second", 32 / took)}) {
      log.training[name].steps.push_back(step);
      log.training[name].values.push_back(value);
    }
  }
  return log;
}

// With eight waves, 10 to 12 % of the pairs are told apart at 120 and 200 steps. With a wave for
// each 50 steps it is 5 to 6.5 %, and the bound is five standard deviations above that; without a
// disturbance it is at most 5 %.
TEST(CompareSpeed, SmallSlowDisturbancesAreSeldomTakenForADifference) {
  constexpr int kPairs = 1500;
  for (const double share : {0.0, 0.5}) {
    for (const int steps : {120, 200, 300}) {
      RandomStream random(17);
      int told = 0;
      for (int pair = 0; pair < kPairs; ++pair) {
        const auto compared =
            compare_speed({disturbed(steps, share, random)}, {disturbed(steps, share, random)});
        ASSERT_TRUE(compared);
        told += compared->log_ratio.p_value < 0.05 ? 1 : 0;
      }
      std::cout << steps << " steps, disturbance " << share << ": " << 100.0 * told / kPairs
                << " % of " << kPairs << " pairs told apart\n";
      const double expected = share == 0 ? 0.05 : 0.065;
      EXPECT_LE(told, kPairs * expected + 5 * std::sqrt(kPairs * expected * (1 - expected)))
          << steps << " " << share;
      EXPECT_GE(told, kPairs * 0.02) << "it never says anything: " << steps << " " << share;
    }
  }
}

}  // namespace
}  // namespace trireme::tools
