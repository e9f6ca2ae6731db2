#pragma once

#include <string>

#include "trireme/metrics/significance.h"

// Differences in words that a person can use.

namespace trireme::tools {

inline constexpr double kSureEnough = 0.05;  // the p-value that belongs to the 95 % interval

// What the interval of a metric is of.
enum class Scale {
  kDifference,  // B - A
  kLogRatio,    // the logarithm of B / A, where only the ratio is known well
};

enum class Better { kNeither, kA, kB };

struct Verdict {
  Better better = Better::kNeither;  // kNeither also where no difference is clear
  std::string text;
};

// Losses and errors; everything else is better when it is higher.
bool lower_is_better(const std::string& metric);
// Shares of a whole, which people say in percent and compare in points.
bool is_share(const std::string& metric);
// "91.20 %", "0.4211".
std::string value_text(const std::string& metric, double value);
// "1.20 points" where the metric is a share, "0.0199".
std::string difference_text(const std::string& metric, double difference);
// "0.80 to 1.60", in the units of difference_text; of ratios "B/A 0.95 to 0.97".
std::string interval_text(const std::string& metric, const Interval& interval, Scale scale);
// "0.96 times that of A (95 % interval 0.95 to 0.97)", from the logarithms.
std::string ratio_text(const Difference& log_ratio, const char* other);
// Whether the test can give no smaller p-value: the true one may be anything below it.
bool is_bound(const Difference& difference);
// "< 0.001", "0.043"; of a bound, "< 0.005".
std::string p_text(double p_value, bool bound = false);

// "B is better: accuracy is 1.20 points higher (95 % interval 0.80 to 1.60); chance alone ...". Of
// `tests` made at once, whose p-value is then `adjusted_p`: with five metrics, one in four pairs of
// equal runs would have a difference that is rare by itself. The interval is this metric's alone.
Verdict verdict_on(const std::string& metric,
                   const Difference& difference,
                   double adjusted_p,
                   std::size_t tests,
                   Scale scale = Scale::kDifference);

}  // namespace trireme::tools
