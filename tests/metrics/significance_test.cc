#include "trireme/metrics/significance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A normal number, by Box and Muller.
double normal(RandomStream& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) *
         std::cos(2 * std::numbers::pi * random.uniform());
}

// Relative to the expected value.
void expect_close(double found, double expected, double tolerance, const std::string& what) {
  EXPECT_NEAR(found / expected, 1, tolerance) << what << ": " << found << " and " << expected;
}

TEST(Student, QuantilesAgreeWithTheirClosedForms) {
  constexpr double kTolerance = 2e-14;
  for (const double tail : {1e-12, 1e-6, 0.005, 0.025, 0.1, 0.25, 0.4, 0.499}) {
    const std::string what = "tail " + std::to_string(tail);
    // Of the two ways to write the tangent, the one whose argument is small.
    const double tangent = tail < 0.25 ? -1 / std::tan(std::numbers::pi * tail)
                                       : std::tan(std::numbers::pi * (tail - 0.5));
    expect_close(student_quantile(tail, 1), tangent, kTolerance, what);
    const double alpha = 4 * tail * (1 - tail);
    expect_close(
        student_quantile(tail, 2), (2 * tail - 1) * std::sqrt(2 / alpha), kTolerance, what);
    const double root = std::sqrt(alpha);
    // For small arccosines of numbers near 1, through the sine: full precision for 4 degrees.
    const double angle = std::atan2(1 - 2 * tail, root) / 3;  // arccos(root) / 3
    const double q = std::cos(angle) / root;
    const double exact = -2 * std::sqrt(q - 1);
    // q - 1 cancels near the middle, in this formula: it is exact to epsilon / (q - 1).
    expect_close(student_quantile(tail, 4), exact, kTolerance + 1e-15 / (q - 1), what);
  }
}

TEST(Student, QuantilesAreSymmetricAndKnowTheEnds) {
  for (const double degrees : {0.5, 1.0, 3.0, 17.0, 1e6}) {
    EXPECT_EQ(student_quantile(0.5, degrees), 0);
    EXPECT_EQ(student_quantile(0.25, degrees), -student_quantile(0.75, degrees));
    EXPECT_EQ(student_quantile(0, degrees), -kInfinity);
    EXPECT_EQ(student_quantile(1, degrees), kInfinity);
    EXPECT_EQ(student_two_sided(0, degrees), 1);
    EXPECT_EQ(student_two_sided(kInfinity, degrees), 0);
    EXPECT_EQ(student_two_sided(2, degrees), student_two_sided(-2, degrees));
  }
}

// Simpson's rule on the density; the constant from lgamma, whose error (1e-13 for these degrees) is
// below the tolerance.
double share_by_integration(double t, double degrees) {
  const double constant = std::exp(std::lgamma((degrees + 1) / 2) - std::lgamma(degrees / 2)) /
                          std::sqrt(degrees * std::numbers::pi);
  const auto density = [&](double x) {
    return constant * std::pow(1 + x * x / degrees, -(degrees + 1) / 2);
  };
  constexpr int kPieces = 20'000;
  const double width = t / kPieces;
  double sum = density(0) + density(t);
  for (int i = 1; i < kPieces; ++i) {
    sum += density(i * width) * (i % 2 == 0 ? 2 : 4);
  }
  return 1 - 2 * sum * width / 3;
}

TEST(Student, TailsAgreeWithTheIntegralOfTheDensity) {
  for (const double degrees : {0.7, 1.0, 2.5, 5.0, 30.0, 99.0, 400.0}) {
    for (const double t : {0.01, 0.5, 1.0, 1.7, 1.8, 2.0, 3.0, 4.0}) {
      EXPECT_NEAR(student_two_sided(t, degrees), share_by_integration(t, degrees), 1e-12)
          << t << " with " << degrees;
    }
  }
}

TEST(Student, FarTailsKeepTheirDigits) {
  // With 2 degrees, P(|T| >= t) = 1 - t / sqrt(2 + t^2) = 2 / (r (r + t)), r = sqrt(2 + t^2).
  for (const double t : {1e1, 1e3, 1e6, 1e8}) {
    const double r = std::sqrt(2 + t * t);
    expect_close(student_two_sided(t, 2), 2 / (r * (r + t)), 1e-14, std::to_string(t));
  }
  // With 1 degree, 2/pi arctan(1/t).
  for (const double t : {1e-9, 1e-3, 1.0, 1e3, 1e9, 1e200}) {
    // An exponential of a large number has that many times its rounding.
    const double exact = 2 * std::numbers::inv_pi * std::atan(1 / t);
    expect_close(student_two_sided(t, 1),
                 exact,
                 1e-14 + 3e-16 * std::fabs(std::log(exact)),
                 std::to_string(t));
  }
}

TEST(Student, ManyDegreesAreTheNormalDistribution) {
  // They differ by a factor of about 1 + (t + t^4) / (4 degrees).
  for (const double degrees : {1e9, 1e12, 1e15, 1e30}) {
    for (const double t : {0.1, 1.0, 1.7, 1.8, 2.0, 3.0, 6.0}) {
      expect_close(student_two_sided(t, degrees),
                   std::erfc(t / std::numbers::sqrt2),
                   (t + t * t * t * t) / degrees + 2e-14,
                   std::to_string(t));
    }
  }
}

TEST(Student, AQuantilesTailsAreWhatWasAskedFor) {
  for (const double degrees : {0.5, 1.0, 4.0, 9.0, 99.0, 9999.0, 1e6}) {
    for (const double tail : {1e-9, 0.001, 0.025, 0.2}) {
      expect_close(student_two_sided(student_quantile(tail, degrees), degrees),
                   2 * tail,
                   1e-13,
                   std::to_string(degrees));
    }
  }
  EXPECT_THROW(student_quantile(1.5, 3), ConfigError);
  EXPECT_THROW(student_quantile(0.5, 0), ConfigError);
}

TEST(Significance, TestsFollowTheirTextbookFormulas) {
  const std::vector<double> a = {12.1, 11.4, 13.0, 12.6, 11.9, 12.2};
  const std::vector<double> b = {12.9, 11.8, 13.2, 13.5, 12.1};
  const auto moments = [](const std::vector<double>& values) {
    const double n = static_cast<double>(values.size());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
    double squares = 0;
    for (const double value : values) {
      squares += (value - mean) * (value - mean);
    }
    return std::pair(mean, squares / (n - 1));
  };
  const auto [mean_a, variance_a] = moments(a);
  const auto [mean_b, variance_b] = moments(b);
  const double va = variance_a / 6;
  const double vb = variance_b / 5;
  const double degrees = (va + vb) * (va + vb) / (va * va / 5 + vb * vb / 4);
  const Difference welch = welch_t_test(a, b);
  EXPECT_NEAR(welch.mean, mean_b - mean_a, 1e-13);
  EXPECT_NEAR(
      welch.p_value, student_two_sided((mean_b - mean_a) / std::sqrt(va + vb), degrees), 1e-12);
  EXPECT_NEAR(welch.interval95.high - welch.mean,
              student_quantile(0.975, degrees) * std::sqrt(va + vb),
              1e-12);

  const std::vector<double> first(a.begin(), a.begin() + 5);
  std::vector<double> differences;
  for (std::size_t i = 0; i < 5; ++i) {
    differences.push_back(b[i] - a[i]);
  }
  const auto [mean_d, variance_d] = moments(differences);
  const Difference paired = paired_t_test(first, b);
  EXPECT_NEAR(paired.mean, mean_d, 1e-13);
  EXPECT_NEAR(paired.p_value, student_two_sided(mean_d / std::sqrt(variance_d / 5), 4), 1e-12);
  EXPECT_NEAR(paired.mean - paired.interval95.low,
              student_quantile(0.975, 4) * std::sqrt(variance_d / 5),
              1e-12);
  const MeanEstimate estimate = mean_of(differences);
  EXPECT_NEAR(estimate.interval95.low, paired.interval95.low, 1e-13);
  EXPECT_NEAR(estimate.deviation, std::sqrt(variance_d), 1e-13);
  EXPECT_EQ(estimate.count, 5);
}

TEST(Significance, ASmallSpreadBesideALargeMeanIsKept) {
  const std::vector<double> values = {1e9 + 1, 1e9 + 2, 1e9 + 3};
  EXPECT_DOUBLE_EQ(mean_of(values).deviation, 1);
}

// Of two folds with a difference of 0.05 each, equal models show as much in one pair of twenty.
TEST(Significance, WithoutSpreadNothingCanBeSaid) {
  const std::vector<double> same = {2, 2, 2};
  const std::vector<double> more = {3, 3, 3};
  const std::vector<double> one = {2};
  const std::vector<double> other = {5};
  // As doubles the differences of these are not quite alike.
  const std::vector<double> shares = {0.85, 0.90, 0.15};
  const std::vector<double> higher = {0.90, 0.95, 0.20};
  ASSERT_NE(higher[0] - shares[0], higher[1] - shares[1]);
  const std::vector<double> sums = {0.1 + 0.2, 0.3};
  const std::vector<double> ends = {0.7, 0.1 + 0.6};
  for (const Difference& difference : {paired_t_test(same, same),
                                       paired_t_test(same, more),
                                       welch_t_test(same, same),
                                       welch_t_test(same, more),
                                       paired_t_test(shares, higher),
                                       welch_t_test(sums, ends),
                                       paired_t_test(one, other),
                                       welch_t_test(one, more)}) {
    EXPECT_EQ(difference.p_value, 1) << difference.test;
    EXPECT_EQ(difference.interval95.low, -kInfinity) << difference.test;
    EXPECT_EQ(difference.interval95.high, kInfinity) << difference.test;
  }
  EXPECT_EQ(paired_t_test(same, more).mean, 1);
  // One set with a spread is enough.
  const std::vector<double> spread = {3, 4, 3};
  EXPECT_LT(welch_t_test(same, spread).p_value, 0.2);
  for (const std::vector<double>& values : {one, same, sums}) {
    EXPECT_EQ(mean_of(values).interval95.low, -kInfinity);
    EXPECT_EQ(mean_of(values).interval95.high, kInfinity);
  }
  for (const double bad : {std::nan(""), kInfinity}) {
    const std::vector<double> broken = {2, bad, 2};
    EXPECT_TRUE(std::isnan(paired_t_test(same, broken).p_value));
    EXPECT_TRUE(std::isnan(welch_t_test(same, broken).p_value));
    EXPECT_TRUE(std::isnan(welch_t_test(broken, one).interval95.low));
  }
  EXPECT_THROW(paired_t_test(one, more), ConfigError);
  EXPECT_THROW(welch_t_test(one, {}), ConfigError);
  EXPECT_THROW(mean_of({}), ConfigError);
}

struct Hits {
  std::vector<std::uint8_t> a;
  std::vector<std::uint8_t> b;
};

Hits hits_with(int both, int only_a, int only_b) {
  Hits hits{std::vector<std::uint8_t>(both + only_a, 1), std::vector<std::uint8_t>(both, 1)};
  hits.a.resize(both + only_a + only_b, 0);
  hits.b.resize(both + only_a, 0);
  hits.b.resize(both + only_a + only_b, 1);
  return hits;
}

TEST(McNemar, AgreesWithTheSumOfTheBinomial) {
  for (int only_a = 0; only_a <= 60; ++only_a) {
    for (int only_b = 0; only_b <= 60; ++only_b) {
      const int n = only_a + only_b;
      double below = 0;
      double choose = 1;  // n over k
      for (int k = 0; k <= std::min(only_a, only_b); ++k) {
        below += choose * std::pow(0.5, n);
        choose = choose * (n - k) / (k + 1);
      }
      const Hits hits = hits_with(30, only_a, only_b);
      const Difference found = mcnemar_test(hits.a, hits.b);
      EXPECT_NEAR(found.p_value, std::min(1.0, 2 * below), 1e-12) << only_a << " " << only_b;
      EXPECT_DOUBLE_EQ(found.mean, static_cast<double>(only_b - only_a) / (30 + n));
      const bool holds_0 = found.interval95.low <= 0 && 0 <= found.interval95.high;
      EXPECT_EQ(holds_0, 2 * below >= 0.05) << only_a << " " << only_b;
    }
  }
}

TEST(McNemar, LargeCountsNeitherOverflowNorVanish) {
  // By the normal distribution with its correction of one half, good to O(1/sqrt(n)) far in.
  const Hits hits = hits_with(0, 500'000, 502'000);
  const double z = (2000.0 - 1) / std::sqrt(1'002'000.0);
  expect_close(mcnemar_test(hits.a, hits.b).p_value,
               std::erfc(z / std::numbers::sqrt2),
               1e-3,
               "half a million each");
  const Hits clear = hits_with(0, 0, 2000);
  EXPECT_GE(mcnemar_test(clear.a, clear.b).p_value, 0);
  EXPECT_LT(mcnemar_test(clear.a, clear.b).p_value, 1e-300);
}

// Kolmogorov and Smirnov's distance of p-values from the uniform distribution.
double distance_from_uniform(std::vector<double> p_values) {
  std::sort(p_values.begin(), p_values.end());
  double distance = 0;
  const double n = static_cast<double>(p_values.size());
  for (std::size_t i = 0; i < p_values.size(); ++i) {
    distance = std::max({distance,
                         std::fabs(p_values[i] - static_cast<double>(i) / n),
                         std::fabs(p_values[i] - static_cast<double>(i + 1) / n)});
  }
  return distance;
}

constexpr int kTrials = 4000;
// P(distance > d) < 2 exp(-2 n d^2) (Massart): one in a million for this.
const double kFarthest = std::sqrt(std::log(2e6) / (2 * kTrials));

TEST(Significance, WithoutADifferenceTheTestsOfMeansGiveUniformPValues) {
  RandomStream random(2024);
  std::vector<double> paired;
  std::vector<double> welch;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> a(6);
    std::vector<double> b(6);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double shared = 3 * normal(random);  // what makes a pair a pair
      a[i] = shared + normal(random);
      b[i] = shared + normal(random);
    }
    paired.push_back(paired_t_test(a, b).p_value);
    std::vector<double> c(40);
    std::vector<double> d(40);
    for (std::size_t i = 0; i < c.size(); ++i) {
      c[i] = normal(random);
      d[i] = 1.5 * normal(random);
    }
    welch.push_back(welch_t_test(c, d).p_value);
  }
  EXPECT_LT(distance_from_uniform(paired), kFarthest);
  EXPECT_LT(distance_from_uniform(welch), kFarthest);
}

TEST(Significance, IntervalsHoldTheTruthNineteenTimesOfTwenty) {
  RandomStream random(7);
  int paired = 0;
  int proportions = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> a(8);
    std::vector<double> b(8);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = normal(random);
      b[i] = normal(random) + 0.7;
    }
    const Interval mean = paired_t_test(a, b).interval95;
    paired += mean.low <= 0.7 && 0.7 <= mean.high ? 1 : 0;
    Hits hits{std::vector<std::uint8_t>(200), std::vector<std::uint8_t>(200)};
    for (std::size_t i = 0; i < 200; ++i) {
      const double u = random.uniform();  // 5 % only A, 10 % only B
      hits.a[i] = u < 0.75 ? 1 : 0;
      hits.b[i] = u < 0.70 || u >= 0.90 ? 1 : 0;
    }
    const Interval share = mcnemar_test(hits.a, hits.b).interval95;
    proportions += share.low <= 0.05 && 0.05 <= share.high ? 1 : 0;
  }
  // Five standard deviations of a count of 4000 with chance 0.05 are 69; the interval of
  // proportions is an approximation, for which another percent is allowed.
  EXPECT_NEAR(paired, 0.95 * kTrials, 69);
  EXPECT_NEAR(proportions, 0.95 * kTrials, 69 + 40);
}

// Their mean is the root of the mean of squares, and a small change of one root changes the mean as
// much as it changes that root.
TEST(PartsOfRoot, AddUpToTheRootOfAllSquares) {
  for (const double scale : {1.0, 1e200, 1e-200}) {
    const std::vector<double> roots = {3 * scale, 4 * scale, 0, 5 * scale};
    const std::vector<double> parts = parts_of_root(roots);
    const double root = std::sqrt(50.0 / 4) * scale;
    EXPECT_NEAR(mean_of(parts).mean / root, 1, 1e-14);
    for (std::size_t i = 0; i < roots.size(); ++i) {
      const double share = roots[i] / root;
      EXPECT_NEAR(parts[i] / root, (share * share + 1) / 2, 1e-14) << i;
    }
  }
  EXPECT_EQ(parts_of_root(std::vector<double>{0, 0}), (std::vector<double>{0, 0}));
  EXPECT_EQ(parts_of_root(std::vector<double>{2}), std::vector<double>{2});
  EXPECT_TRUE(std::isnan(parts_of_root(std::vector<double>{std::nan(""), 1})[0]));
}

// The wider one of two intervals, but for an end that would let 0 in where the test left it out.
TEST(Widened, AgreesWithThePValue) {
  const auto ends = [](const Difference& difference, const Interval& other) {
    const Interval found = widened(difference, other).interval95;
    return std::vector<double>{found.low, found.high};
  };
  const Difference sure = {2, {0.5, 3.5}, 0.01, "test"};
  EXPECT_EQ(ends(sure, {0.3, 5}), (std::vector<double>{0.3, 5}));
  EXPECT_EQ(ends(sure, {-0.1, 5}), (std::vector<double>{0.5, 5}));
  EXPECT_EQ(ends(sure, {1, 3}), (std::vector<double>{0.5, 3.5}));
  const Difference less = {-2, {-3.5, -0.5}, 0.01, "test"};
  EXPECT_EQ(ends(less, {-5, 0.1}), (std::vector<double>{-5, -0.5}));
  const Difference unsure = {2, {0, 4}, 0.06, "test"};
  EXPECT_EQ(ends(unsure, {0.5, 5}), (std::vector<double>{0, 5}));
  EXPECT_EQ(ends(unsure, {-0.5, 3}), (std::vector<double>{-0.5, 4}));
}

// The mean of differences of pairs, some of them the other way round, with its standard error.
Estimate mean_swapped(const std::vector<double>& differences,
                      std::span<const std::uint8_t> swapped) {
  const auto n = static_cast<double>(differences.size());
  double sum = 0;
  double squares = 0;
  for (std::size_t i = 0; i < differences.size(); ++i) {
    sum += swapped[i] != 0 ? -differences[i] : differences[i];
    squares += differences[i] * differences[i];
  }
  return {sum / n, std::sqrt((squares - sum * sum / n) / (n - 1) / n)};
}

Difference permuted(const std::vector<double>& differences, int rounds, std::uint64_t seed = 1) {
  return permutation_test(
      std::ssize(differences),
      [&](std::span<const std::uint8_t> swapped) { return mean_swapped(differences, swapped); },
      rounds,
      seed);
}

std::vector<double> normals(std::size_t size, RandomStream& random) {
  std::vector<double> values(size);
  std::ranges::generate(values, [&] { return normal(random); });
  return values;
}

// Of seven pairs all 128 ways can be counted.
TEST(Permutation, AgreesWithAllWaysToSwap) {
  const std::vector<double> differences = {0.3, -0.1, 0.7, 0.2, 0.9, -0.4, 0.5};
  const auto distance = [&](std::span<const std::uint8_t> swapped) {
    const Estimate found = mean_swapped(differences, swapped);
    return std::fabs(found.difference) / found.error;
  };
  const double found = distance(std::vector<std::uint8_t>(7, 0));
  int reached = 0;
  for (unsigned way = 0; way < 128; ++way) {
    std::vector<std::uint8_t> swapped(7);
    for (unsigned i = 0; i < 7; ++i) {
      swapped[i] = static_cast<std::uint8_t>(way >> i & 1U);
    }
    reached += distance(swapped) > found - 1e-12 ? 1 : 0;
  }
  const double exact = reached / 128.0;
  // Five standard deviations of a share of 20000.
  EXPECT_NEAR(
      permuted(differences, 20000).p_value, exact, 5 * std::sqrt(exact * (1 - exact) / 20000));
}

TEST(Permutation, OfAMeanAgreesWithTheTTest) {
  RandomStream random(5);
  std::vector<double> differences = normals(400, random);
  for (double& each : differences) {
    each = 0.3 * each + 0.03;
  }
  const Difference exact = paired_t_test(std::vector<double>(400, 0.0), differences);
  const Difference found = permuted(differences, 4000);
  EXPECT_NEAR(found.mean, exact.mean, 1e-12);
  // The quantile of 4000 distances has a standard error of sqrt(0.05 * 0.95 / 4000) divided by
  // their density at 1.96, 0.117: 0.03 errors of the mean; five of them, and twice the 4 / 400 by
  // which the fourth moment of the sample may move it.
  const double error = (exact.interval95.high - exact.mean) / 1.966;
  EXPECT_NEAR(found.interval95.low, exact.interval95.low, 0.17 * error);
  EXPECT_NEAR(found.interval95.high, exact.interval95.high, 0.17 * error);
  EXPECT_NEAR(found.p_value, exact.p_value, 0.03);
  // The same seed gives the same answer, another seed another.
  EXPECT_EQ(found.interval95.low, permuted(differences, 4000).interval95.low);
  EXPECT_NE(found.interval95.low, permuted(differences, 4000, 2).interval95.low);
}

// Where there is no difference, p-values are below 0.05 in at most 5 % of the cases, however few
// the samples are. Five standard deviations of a count of 2000 with chance 0.05 are 49. The
// interval leaves out 0 in the same cases.
TEST(Permutation, IsValidForFewSamplesAndAgreesWithItsInterval) {
  RandomStream random(12);
  for (const std::size_t samples : {2u, 6u, 10u}) {
    int alarms = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      std::vector<double> differences = normals(samples, random);
      if (trial % 2 == 1) {  // many ties
        std::ranges::transform(
            differences, differences.begin(), [](double each) { return std::round(2 * each); });
        differences[0] += 0.5;
      }
      const Difference found = permuted(differences, 199, static_cast<std::uint64_t>(trial));
      const bool alarm = found.p_value < 0.05;
      alarms += alarm ? 1 : 0;
      EXPECT_EQ(alarm, !(found.interval95.low <= 0 && 0 <= found.interval95.high))
          << found.p_value << " " << found.interval95.low << " " << found.interval95.high;
    }
    EXPECT_LE(alarms, 100 + 49) << samples;
    EXPECT_TRUE(samples > 2 || alarms == 0) << samples;  // two ways of four are alike
    EXPECT_TRUE(samples < 10 || alarms >= 100 - 49) << "it never says anything: " << alarms;
  }
}

TEST(Permutation, NeverSaysThatChanceCannotDoIt) {
  const auto one_way = [](std::span<const std::uint8_t> swapped) {
    return Estimate{std::ranges::count(swapped, 0) == std::ssize(swapped) ? 1.0 : 0.0, 1};
  };
  const Difference rare = permutation_test(100, one_way, 99);
  EXPECT_DOUBLE_EQ(rare.p_value, 0.01);
  EXPECT_EQ(rare.p_value, rare.least_p);
  // So few rounds that their smallest p-value is no rare one.
  EXPECT_EQ(permutation_test(100, one_way, 9).interval95.high, kInfinity);
  for (const double difference : {0.0, 1.0}) {
    const Difference same = permutation_test(
        10,
        [&](auto) {
          return Estimate{difference, 0};
        },
        100);
    EXPECT_EQ(same.p_value, 1);
    EXPECT_EQ(same.interval95.high, kInfinity);
  }
  const auto nothing = [](std::span<const std::uint8_t>) { return Estimate{std::nan(""), 1}; };
  EXPECT_TRUE(std::isnan(permutation_test(10, nothing, 100).p_value));
}

// Holm's method is the closed test of Bonferroni's: a hypothesis is rejected where every set that
// it belongs to is, by its smallest p-value times its size.
double by_all_sets(const std::vector<double>& p_values, std::size_t which) {
  double largest = 0;
  for (unsigned set = 1; set < 1U << p_values.size(); ++set) {
    if ((set >> which & 1U) == 0) {
      continue;
    }
    double size = 0;
    double least = 1;
    for (std::size_t i = 0; i < p_values.size(); ++i) {
      if ((set >> i & 1U) != 0) {
        size += 1;
        least = std::min(least, p_values[i]);
      }
    }
    largest = std::max(largest, std::min(1.0, size * least));
  }
  return largest;
}

TEST(Holm, IsTheClosedTestOfBonferronis) {
  RandomStream random(8);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> p_values;
    for (std::uint64_t i = 0; i <= random.below(7); ++i) {
      p_values.push_back(std::pow(random.uniform(), 3));
    }
    const std::vector<double> found = holm_adjusted(p_values);
    ASSERT_EQ(found.size(), p_values.size());
    for (std::size_t i = 0; i < p_values.size(); ++i) {
      EXPECT_DOUBLE_EQ(found[i], by_all_sets(p_values, i));
    }
  }
  EXPECT_TRUE(holm_adjusted({}).empty());
  const std::vector<double> with_nan = {0.01, std::nan(""), 0.04};
  const std::vector<double> found = holm_adjusted(with_nan);
  EXPECT_DOUBLE_EQ(found[0], 0.02);
  EXPECT_TRUE(std::isnan(found[1]));
  EXPECT_DOUBLE_EQ(found[2], 0.04);
}

}  // namespace
}  // namespace trireme
