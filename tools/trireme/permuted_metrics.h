#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sample_tests.h"

// Metrics that are no mean over samples, by a permutation test. They are smooth functions of means,
// so that what each sample adds to them (its influence) gives their standard error.

namespace trireme::tools {

// Precision, recall or F1, averaged over the classes; nothing for any other metric. Not tested
// where so few samples, or predictions, of a class decide the average that their chance cannot be
// told.
std::optional<MeasuredDifference> compare_class_scores(const std::string& metric,
                                                       const Evaluation& a,
                                                       const Evaluation& b);

// The roots of the means of these, the same samples' in both.
MeasuredDifference compare_root_mean_squares(const std::vector<double>& a,
                                             const std::vector<double>& b);

}  // namespace trireme::tools
