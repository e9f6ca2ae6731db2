#include "verdict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "trireme/core/error.h"
#include "trireme/core/printed.h"

namespace trireme::tools {
namespace {

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// In units that are shown: percent for shares.
std::string plain_text(const std::string& metric, double value) {
  return is_share(metric) ? detail::printed("%.2f", 100 * value) : detail::printed("%.4g", value);
}

std::string chance_text(double p_value) {
  if (p_value < 0.001) {
    return "less than 1 of 1000";
  }
  const bool rare = p_value < 0.0995;
  const double of = rare ? 1000 : 100;
  return detail::printed("about %.0f of %.0f", std::min(of, std::round(p_value * of)), of);
}

// Of A, as B stands beside it.
Difference turned(const Difference& difference) {
  Difference other = difference;
  other.mean = -difference.mean;
  other.interval95 = {-difference.interval95.high, -difference.interval95.low};
  return other;
}

// "1.20 points higher (95 % interval 0.80 to 1.60)", seen in the direction of the difference.
std::string size_text(const std::string& metric, const Difference& difference) {
  const bool higher = difference.mean > 0;
  const Difference up = higher ? difference : turned(difference);
  return detail::concat("{}{} (95 % interval {})",
                        {difference_text(metric, up.mean),
                         higher ? " higher" : " lower",
                         interval_text(metric, up.interval95, Scale::kDifference)});
}

}  // namespace

bool lower_is_better(const std::string& metric) {
  constexpr std::array<std::string_view, 6> kNames = {
      "loss", "perplexity", "mae", "mse", "rmse", "error"};
  return is_one_of(kNames, metric);
}

bool is_share(const std::string& metric) {
  constexpr std::array<std::string_view, 7> kNames = {
      "accuracy", "precision", "recall", "f1", "f1_micro", "error", "top5"};
  return is_one_of(kNames, metric);
}

std::string value_text(const std::string& metric, double value) {
  return is_share(metric) ? detail::printed("%.2f %%", 100 * value)
                          : detail::printed("%.5g", value);
}

std::string difference_text(const std::string& metric, double difference) {
  return plain_text(metric, difference) + (is_share(metric) ? " points" : "");
}

std::string interval_text(const std::string& metric, const Interval& interval, Scale scale) {
  if (interval.low == 0 && interval.high == 0) {
    return "-";  // no sample differs: nothing tells how far apart the runs may be on others
  }
  if (scale == Scale::kLogRatio) {
    return detail::printed("B/A %.4g to %.4g", std::exp(interval.low), std::exp(interval.high));
  }
  return plain_text(metric, interval.low) + " to " + plain_text(metric, interval.high);
}

std::string ratio_text(const Difference& log_ratio, const char* other) {
  return detail::printed("%.4g times that of %s (95 %% interval %.4g to %.4g)",
                         std::exp(log_ratio.mean),
                         other,
                         std::exp(log_ratio.interval95.low),
                         std::exp(log_ratio.interval95.high));
}

bool is_bound(const Difference& difference) {
  return difference.p_value <= difference.least_p;
}

std::string p_text(double p_value, bool bound) {
  return std::isnan(p_value) ? "-"
         : p_value < 0.001   ? "< 0.001"
                             : (bound ? "< " : "") + detail::printed("%.3f", p_value);
}

Verdict verdict_on(const std::string& metric,
                   const Difference& difference,
                   double adjusted_p,
                   std::size_t tests,
                   Scale scale) {
  if (!std::isfinite(difference.mean) || std::isnan(difference.p_value)) {
    return {Better::kNeither,
            metric + " cannot be compared: not all of its values are finite numbers"};
  }
  if (difference.mean == 0) {
    return {Better::kNeither, "no difference: " + metric + " is the same in both"};
  }
  // An adjusted p-value is a bound for all tests together, not how often this one comes out so.
  const std::string chance =
      detail::concat("chance alone would give a difference this large in {} comparisons{}",
                     {chance_text(difference.p_value),
                      tests > 1 ? detail::concat(" (p adjusted for {} metrics: {})",
                                                 {tests, p_text(adjusted_p, is_bound(difference))})
                                : ""});
  if (adjusted_p >= kSureEnough) {
    const bool rare_alone = difference.p_value < kSureEnough;
    return {Better::kNeither,
            detail::concat("no clear difference{}: {} of B came out {}, but {}",
                           {rare_alone ? detail::concat(" among ", tests, " metrics") : "",
                            metric,
                            scale == Scale::kLogRatio ? "to " + ratio_text(difference, "A")
                                                      : size_text(metric, difference),
                            chance})};
  }
  const bool b_is_better = (difference.mean > 0) != lower_is_better(metric);
  // Said of the better one, so that "better" and "higher" are about the same run.
  const Difference of_better = b_is_better ? difference : turned(difference);
  return {b_is_better ? Better::kB : Better::kA,
          detail::concat("{} is better: {} is {}; {}",
                         {b_is_better ? "B" : "A",
                          metric,
                          scale == Scale::kLogRatio ? ratio_text(of_better, b_is_better ? "A" : "B")
                                                    : size_text(metric, of_better),
                          chance})};
}

}  // namespace trireme::tools
