#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

// How certain a difference is.

namespace trireme {

struct Interval {
  double low = 0;
  double high = 0;
};

struct MeanEstimate {
  double mean = 0;
  double deviation = 0;  // of the values
  std::int64_t count = 0;
  Interval interval95{};  // of the mean, by Student's t; infinite for a single value
};
MeanEstimate mean_of(std::span<const double> values);

// An interval cut to what its number can be at all: it holds the true one as often as before.
Interval within(const Interval& interval, const Interval& range);

struct Difference {
  double mean = 0;  // b - a
  Interval interval95{};
  double p_value = 1;  // of seeing one at least as large where there is none, two-sided
  const char* test = "";
  double least_p = 0;  // that the test can give: a p-value that is no larger is a bound
};

// All tests throw ConfigError if there are no values, or no pairs. A single pair has no spread:
// its interval is infinite and its p-value 1. Values that are not finite give NaN.

// From a mean difference with its standard error, which has so many degrees of freedom; not above 0
// where there are too few values to tell an error at all.
Difference student_difference(double mean, double error, double degrees, const char* test);
// Student's t on the differences of pairs (the same samples, or folds, in both).
Difference paired_t_test(std::span<const double> a, std::span<const double> b);
// Welch's t on two independent sets.
Difference welch_t_test(std::span<const double> a, std::span<const double> b);
// McNemar's exact test on paired hits and misses (1 and 0); the interval is that of the paired
// difference of proportions, by Bonett and Price.
Difference mcnemar_test(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);
// For any statistic of a set of samples (F1, ...): resamples the pairs `rounds` times with a fixed
// seed. `statistic(which, order)` computes it for run 0 or 1 on the samples in `order`. The p-value
// is never below 2 / (rounds + 1).
Difference paired_bootstrap(
    std::int64_t samples,
    const std::function<double(int which, std::span<const std::int64_t> order)>& statistic,
    int rounds = 1000,
    std::uint64_t seed = 1);
// The p-value of a difference of any such statistic, by a permutation test: where the runs are
// alike, each pair may as well be the other way round, so that this is valid for any number of
// samples, of which a bootstrap needs dozens. `difference(swapped)` computes b - a with the pairs
// swapped of the samples that are marked by 1; of `rounds` random markings, those that give one at
// least as large are counted. Never below 1 / (rounds + 1); 1 for a difference that is not finite.
inline constexpr int kPermutations = 1000;
double paired_permutation_p(
    std::int64_t samples,
    const std::function<double(std::span<const std::uint8_t> swapped)>& difference,
    int rounds = kPermutations,
    std::uint64_t seed = 1);

// The p-values of several tests made at once, by Holm's method: where those that are returned are
// compared with a level, the chance of even one false alarm among them is below it, however the
// tests depend on each other. NaN stays NaN and is no test.
std::vector<double> holm_adjusted(std::span<const double> p_values);

// The value below which a t-distributed number lies with this probability.
double student_quantile(double probability, double degrees);
// P(|T| >= t).
double student_two_sided(double t, double degrees);

}  // namespace trireme
