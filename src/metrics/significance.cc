#include "trireme/metrics/significance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

constexpr double kLevel = 0.05;                    // of the tests to which 95 % intervals belong
constexpr double kNormal975 = 1.9599639845400545;  // 97.5 % of the normal distribution lie below

struct Moments {
  double mean = 0;
  double variance = 0;  // of the values, with n - 1 below; 0 for one value
};

// Two passes: the short formula (sum of squares minus square of sums) cancels all digits where the
// spread is small beside the mean, as with times and losses.
Moments moments_of(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  double rest = 0;  // what rounding has left in the mean
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
    rest += value - mean;
  }
  const double corrected = mean + rest / count;
  return {std::isfinite(corrected) ? corrected : mean,
          values.size() < 2 ? 0 : std::max(0.0, squares - rest * rest / count) / (count - 1)};
}

double largest_of(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// 0 where it is only what rounding leaves of numbers of this size: 0.90 - 0.85 and 0.95 - 0.90 are
// not the same double.
double beyond_rounding(double error, double largest) {
  constexpr double kRounding = 1e-12;
  return error <= kRounding * largest ? 0 : error;
}

constexpr Interval kAnything = {-std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::infinity()};

// P(X <= least) for X from `trials` throws of a coin, from its largest term down. Logarithms keep
// counts in the millions from underflowing.
double coin_tail(std::int64_t least, std::int64_t trials) {
  const auto n = static_cast<double>(trials);
  auto k = static_cast<double>(least);
  double term = std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) -
                         n * std::log(2.0));
  double sum = term;
  for (; k > 0 && term > sum * 1e-18; --k) {
    term *= k / (n - k + 1);
    sum += term;
  }
  return sum;
}

}  // namespace

MeanEstimate mean_of(std::span<const double> values) {
  TRIREME_CHECK(!values.empty(), "expected at least one value to take the mean of, found none");
  const Moments moments = moments_of(values);
  const auto count = static_cast<double>(values.size());
  MeanEstimate result{moments.mean,
                      std::sqrt(moments.variance),
                      static_cast<std::int64_t>(values.size()),
                      kAnything};
  const double error = beyond_rounding(std::sqrt(moments.variance / count), largest_of(values));
  if (error != 0) {
    const double reach = student_quantile(0.975, count - 1) * error;
    result.interval95 = {moments.mean - reach, moments.mean + reach};
  }
  return result;
}

std::vector<double> parts_of_root(std::span<const double> roots) {
  std::vector<double> parts(roots.begin(), roots.end());
  const double largest = largest_of(roots);
  if (largest == 0 || !std::isfinite(largest)) {
    return parts;
  }
  double squares = 0;  // of shares of the largest, which neither over- nor underflow
  for (const double root : roots) {
    squares += root / largest * (root / largest);
  }
  const double root = largest * std::sqrt(squares / static_cast<double>(roots.size()));
  for (double& part : parts) {
    part = (part * (part / root) + root) / 2;
  }
  return parts;
}

Interval within(const Interval& interval, const Interval& range) {
  // NaN stays what it is.
  return {interval.low < range.low ? range.low : interval.low,
          interval.high > range.high ? range.high : interval.high};
}

Difference student_difference(double mean, double error, double degrees, const char* test) {
  if (!std::isfinite(mean) || !std::isfinite(error)) {
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    return {mean, {nothing, nothing}, nothing, test};
  }
  if (!(degrees > 0) || error == 0) {
    return {mean, kAnything, 1, test};
  }
  const double reach = student_quantile(0.975, degrees) * error;
  return {mean, {mean - reach, mean + reach}, student_two_sided(mean / error, degrees), test};
}

Difference paired_t_test(std::span<const double> a, std::span<const double> b) {
  TRIREME_CHECK(a.size() == b.size() && !a.empty(),
                "a paired test needs the same number of values from both, found {} and {}",
                {a.size(), b.size()});
  std::vector<double> differences(a.size());
  std::transform(b.begin(), b.end(), a.begin(), differences.begin(), std::minus<>());
  const Moments moments = moments_of(differences);
  const auto count = static_cast<double>(differences.size());
  const double error =
      beyond_rounding(std::sqrt(moments.variance / count), std::max(largest_of(a), largest_of(b)));
  return student_difference(moments.mean, error, count - 1, "paired t-test");
}

Difference welch_t_test(std::span<const double> a, std::span<const double> b) {
  TRIREME_CHECK(!a.empty() && !b.empty(),
                "Welch's test needs values from both, found {} and {}",
                {a.size(), b.size()});
  const Moments of_a = moments_of(a);
  const Moments of_b = moments_of(b);
  const auto count_a = static_cast<double>(a.size());
  const auto count_b = static_cast<double>(b.size());
  const double mean = of_b.mean - of_a.mean;
  if (a.size() < 2 || b.size() < 2) {
    return student_difference(mean, 0, 0, "Welch's t-test");
  }
  const double share_a = of_a.variance / count_a;
  const double share_b = of_b.variance / count_b;
  const double square = share_a + share_b;
  // Welch and Satterthwaite. Of the shares' ratio, so that tiny variances do not underflow.
  const double part_a = square > 0 ? share_a / square : 1;
  const double part_b = square > 0 ? share_b / square : 0;
  const double degrees = 1 / (part_a * part_a / (count_a - 1) + part_b * part_b / (count_b - 1));
  const double error = beyond_rounding(std::sqrt(square), std::max(largest_of(a), largest_of(b)));
  return student_difference(mean, error, degrees, "Welch's t-test");
}

Difference widened(const Difference& difference, const Interval& other) {
  const Interval& own = difference.interval95;
  const bool without_0 = difference.p_value < kLevel;
  Difference result = difference;
  if (!(without_0 && other.low <= 0 && own.low > 0)) {
    result.interval95.low = std::min(own.low, other.low);
  }
  if (!(without_0 && other.high >= 0 && own.high < 0)) {
    result.interval95.high = std::max(own.high, other.high);
  }
  return result;
}

Difference mcnemar_test(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  TRIREME_CHECK(a.size() == b.size() && !a.empty(),
                "a paired test needs the same number of hits and misses from both, found {} and {}",
                {a.size(), b.size()});
  std::int64_t only_a = 0;
  std::int64_t only_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    only_a += a[i] != 0 && b[i] == 0 ? 1 : 0;
    only_b += a[i] == 0 && b[i] != 0 ? 1 : 0;
  }
  const auto count = static_cast<double>(a.size());
  const auto wins_a = static_cast<double>(only_a);
  const auto wins_b = static_cast<double>(only_b);
  Difference result{(wins_b - wins_a) / count, {}, 1, "McNemar's exact test"};
  if (only_a != only_b) {
    result.p_value = std::min(1.0, 2 * coin_tail(std::min(only_a, only_b), only_a + only_b));
  }
  // Bonett and Price's interval (2012): Wald's with one more of each kind of disagreement, which
  // keeps its promise for few disagreements, where Wald's shrinks to nothing.
  const double share_a = (wins_a + 1) / (count + 2);
  const double share_b = (wins_b + 1) / (count + 2);
  const double centre = share_b - share_a;
  const double reach = kNormal975 * std::sqrt((share_a + share_b - centre * centre) / (count + 2));
  result.interval95 = {std::max(-1.0, centre - reach), std::min(1.0, centre + reach)};
  if (result.p_value >= kLevel) {
    result.interval95 = {std::min(0.0, result.interval95.low),
                         std::max(0.0, result.interval95.high)};
  }
  return result;
}

Difference permutation_test(
    std::int64_t samples,
    const std::function<Estimate(std::span<const std::uint8_t> swapped)>& estimate,
    int rounds,
    std::uint64_t seed) {
  TRIREME_CHECK(samples > 0 && rounds > 0,
                "a permutation test needs samples and rounds, found {} and {}",
                {samples, rounds});
  const double least_p = 1.0 / (rounds + 1);
  std::vector<std::uint8_t> swapped(static_cast<std::size_t>(samples), 0);
  const Estimate found = estimate(swapped);
  if (!std::isfinite(found.difference) || !std::isfinite(found.error)) {
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    return {found.difference, {nothing, nothing}, nothing, "permutation test", least_p};
  }
  if (found.error == 0) {
    return {found.difference, kAnything, 1, "permutation test", least_p};
  }
  // In standard errors. Without an error there is no saying how many: more than any number.
  const auto distance = [](const Estimate& each) {
    return each.difference == 0 ? 0.0 : std::fabs(each.difference) / each.error;
  };
  std::vector<double> distances;  // of random markings
  distances.reserve(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    RandomStream random(mix(seed, round));
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < swapped.size(); ++i) {
      bits = i % 64 == 0 ? random.next() : bits >> 1;
      swapped[i] = static_cast<std::uint8_t>(bits & 1U);
    }
    const double each = distance(estimate(swapped));
    distances.push_back(std::isnan(each) ? std::numeric_limits<double>::infinity() : each);
  }
  // All pairs swapped are as far away, up to the rounding of sums in another order.
  constexpr double kSame = 1 - 1e-9;
  const double as_far = distance(found) * kSame;
  // The pairs as they are make one marking, too: no number of rounds shows that chance never does
  // it.
  const auto reached = 1 + std::ranges::count_if(distances, [&](double d) { return d >= as_far; });
  Difference result{found.difference,
                    kAnything,
                    static_cast<double>(reached) / static_cast<double>(rounds + 1),
                    "permutation test",
                    least_p};
  // So many markings may reach as far while the p-value is below the level; the next one is as far
  // away as chance goes.
  const auto allowed = static_cast<std::int64_t>(std::ceil(kLevel * (rounds + 1))) - 2;
  if (allowed >= 0) {
    const auto at = distances.begin() + allowed;
    std::ranges::nth_element(distances, at, std::greater<>());
    const double reach = *at / kSame * found.error;
    result.interval95 = {found.difference - reach, found.difference + reach};
  }
  return result;
}

std::vector<double> holm_adjusted(std::span<const double> p_values) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < p_values.size(); ++i) {
    if (!std::isnan(p_values[i])) {
      order.push_back(i);
    }
  }
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> adjusted(p_values.begin(), p_values.end());
  double largest = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto left = static_cast<double>(order.size() - i);
    largest = std::max(largest, std::min(1.0, left * p_values[order[i]]));
    adjusted[order[i]] = largest;
  }
  return adjusted;
}

}  // namespace trireme
