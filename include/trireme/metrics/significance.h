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
  // Of the mean, by Student's t; infinite where no two values differ by more than rounding: what
  // has shown no spread says nothing about how far the next value may lie.
  Interval interval95{};
};
MeanEstimate mean_of(std::span<const double> values);

// Of roots of mean squares, each of a set of as many values: what each contributes to the root of
// the mean of all squares. The mean of these is that root, and their spread tells its error, to
// first order. (The mean of the roots themselves is smaller.)
std::vector<double> parts_of_root(std::span<const double> roots);

// An interval cut to what its number can be at all: it holds the true one as often as before.
Interval within(const Interval& interval, const Interval& range);

struct Difference {
  double mean = 0;  // b - a
  Interval interval95{};
  double p_value = 1;  // of seeing one at least as large where there is none, two-sided
  const char* test = "";
  double least_p = 0;  // that the test can give: a p-value that is no larger is a bound
};

// All tests throw ConfigError if there are no values, or no pairs. Where no spread is seen (of one
// pair, or of differences that are all the same but for rounding), nothing can be said: the
// interval is infinite and the p-value 1. Values that are not finite give NaN. An interval holds 0
// where the p-value is not below 5 %, and only there.

// From a mean difference with its standard error, which has so many degrees of freedom; not above 0
// where there are too few values to tell an error at all. An error of 0 is no spread.
Difference student_difference(double mean, double error, double degrees, const char* test);
// Student's t on the differences of pairs (the same samples, or folds, in both).
Difference paired_t_test(std::span<const double> a, std::span<const double> b);
// Welch's t on two independent sets.
Difference welch_t_test(std::span<const double> a, std::span<const double> b);
// The same difference, whose interval also holds that of another method, as far as 0 stays out of
// it where the p-value is below 5 %: at each end the method that reaches further decides. `other`
// is finite.
Difference widened(const Difference& difference, const Interval& other);
// McNemar's exact test on paired hits and misses (1 and 0); the interval is that of the paired
// difference of proportions, by Bonett and Price, widened to 0 where the exact test, which asks for
// a little more, does not leave 0 out.
Difference mcnemar_test(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);
// A difference b - a of some statistic of the samples, and its standard error.
struct Estimate {
  double difference = 0;
  double error = 0;
};
// For any such statistic (F1, ...), a permutation test: where the runs are alike, each pair may as
// well be the other way round. `estimate(swapped)` computes b - a, with its standard error, where
// the pairs of the samples marked by 1 are swapped. Of `rounds` random markings, those are counted
// whose difference is as many errors away from 0 as that found, or more. Counting errors makes the
// test right also for runs that are equal in this statistic alone (Chung and Romano, 2013), and
// gives the interval: as many errors to both sides as chance reaches in 95 % of the markings. Where
// few pairs differ, markings have few values, and chance may reach as far as what was found and no
// further: such an interval ends at 0 and at twice the difference, whatever is true, and has to be
// widened. The p-value is never below 1 / (rounds + 1).
inline constexpr int kPermutations = 1000;
Difference permutation_test(
    std::int64_t samples,
    const std::function<Estimate(std::span<const std::uint8_t> swapped)>& estimate,
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
