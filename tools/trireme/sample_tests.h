#pragma once

#include <optional>
#include <string>

#include "run_reader.h"
#include "trireme/metrics/significance.h"

// Tests on what two runs made of each single sample, the same samples in both.

namespace trireme::tools {

struct MeasuredDifference {
  double a = 0;
  double b = 0;
  std::optional<Difference> difference;  // nothing where it was not tested:
  std::string why_untested{};
};

// True when both have the same samples with the same targets: only then are they pairs. Of text,
// whose windows are alike in number and length, only the fingerprints tell.
bool same_samples(const Evaluation& a, const Evaluation& b);
// False where the samples are known to hold different things.
bool may_be_the_same(const Evaluation& a, const Evaluation& b);
// True where they are known to hold the same.
bool known_to_be_the_same(const Evaluation& a, const Evaluation& b);

// The metric in both, and how sure its difference is; nothing for a metric that does not follow
// from the samples. `classes` says that targets and predictions are classes, not quantities.
std::optional<MeasuredDifference> compare_samples(const std::string& metric,
                                                  const Evaluation& a,
                                                  const Evaluation& b,
                                                  bool classes);

}  // namespace trireme::tools
