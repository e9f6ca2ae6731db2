#include "trireme/metrics/significance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

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

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double fraction = at - static_cast<double>(below);
  return sorted[below] * (1 - fraction) + sorted[above] * fraction;
}

}  // namespace

MeanEstimate mean_of(std::span<const double> values) {
  TRIREME_CHECK(!values.empty(), "expected at least one value to take the mean of, found none");
  const Moments moments = moments_of(values);
  const auto count = static_cast<double>(values.size());
  constexpr double kAnything = std::numeric_limits<double>::infinity();
  MeanEstimate result{moments.mean,
                      std::sqrt(moments.variance),
                      static_cast<std::int64_t>(values.size()),
                      {-kAnything, kAnything}};
  if (values.size() > 1) {
    const double reach = student_quantile(0.975, count - 1) * std::sqrt(moments.variance / count);
    result.interval95 = {moments.mean - reach, moments.mean + reach};
  }
  return result;
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
  if (!(degrees > 0)) {
    const double anything = std::numeric_limits<double>::infinity();
    return {mean, {-anything, anything}, 1, test};
  }
  if (error == 0) {
    return {mean, {mean, mean}, mean == 0 ? 1.0 : 0.0, test};
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
  return student_difference(
      moments.mean, std::sqrt(moments.variance / count), count - 1, "paired t-test");
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
  return student_difference(mean, std::sqrt(square), degrees, "Welch's t-test");
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
  return result;
}

Difference paired_bootstrap(
    std::int64_t samples,
    const std::function<double(int which, std::span<const std::int64_t> order)>& statistic,
    int rounds,
    std::uint64_t seed) {
  TRIREME_CHECK(samples > 0 && rounds > 0,
                "a bootstrap needs samples and rounds, found {} and {}",
                {samples, rounds});
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Difference result{statistic(1, order) - statistic(0, order), {}, 1, "paired bootstrap"};

  std::vector<double> differences;
  differences.reserve(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    RandomStream random(mix(seed, round));
    for (std::int64_t& sample : order) {
      sample = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(samples)));
    }
    const double difference = statistic(1, order) - statistic(0, order);
    if (std::isfinite(difference)) {  // a resample may lack what the statistic needs
      differences.push_back(difference);
    }
  }
  if (differences.empty() || !std::isfinite(result.mean)) {
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    result.interval95 = {nothing, nothing};
    return result;
  }
  std::ranges::sort(differences);
  result.interval95 = {percentile(differences, 0.025), percentile(differences, 0.975)};
  const auto other_side = std::ranges::count_if(differences, [&](double difference) {
    return result.mean > 0 ? difference <= 0 : difference >= 0;
  });
  if (result.mean != 0) {
    // The set itself counts as one of the resamples: no number of rounds shows that chance never
    // does it.
    result.p_value = std::min(
        1.0, 2 * static_cast<double>(other_side + 1) / static_cast<double>(differences.size() + 1));
  }
  return result;
}

double paired_permutation_p(
    std::int64_t samples,
    const std::function<double(std::span<const std::uint8_t> swapped)>& difference,
    int rounds,
    std::uint64_t seed) {
  TRIREME_CHECK(samples > 0 && rounds > 0,
                "a permutation test needs samples and rounds, found {} and {}",
                {samples, rounds});
  std::vector<std::uint8_t> swapped(static_cast<std::size_t>(samples), 0);
  const double found = std::fabs(difference(swapped));
  if (!std::isfinite(found)) {
    return 1;
  }
  // All pairs swapped give the same difference, up to the rounding of sums in another order.
  const double as_large = found * (1 - 1e-9);
  int reached = 1;  // by the pairs as they are, which are one of the markings
  for (int round = 0; round < rounds; ++round) {
    RandomStream random(mix(seed, round));
    for (std::uint8_t& mark : swapped) {
      mark = static_cast<std::uint8_t>(random.below(2));
    }
    reached += std::fabs(difference(swapped)) < as_large ? 0 : 1;  // NaN is no smaller one
  }
  return static_cast<double>(reached) / static_cast<double>(rounds + 1);
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
