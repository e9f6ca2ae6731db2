#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run_reader.h"
#include "trireme/metrics/significance.h"
#include "verdict.h"

// Tests on what two runs made of each single sample, the same samples in both, or of each fold.

namespace trireme::tools {

struct MeasuredDifference {
  double a = 0;
  double b = 0;
  std::optional<Difference> difference;  // nothing where it was not tested:
  std::string why_untested{};
  Scale scale = Scale::kDifference;
};

// What was found where there is any spread to tell chance by. Where there is none, two runs that
// are the `same` in everything have no difference, and about others nothing is known; `what` names
// all that they were compared on, "3 folds".
MeasuredDifference with_spread(MeasuredDifference found, bool same, const std::string& what);

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

// One metric of the folds of A and of B: as `paired`, fold by fold, or else as two sets. It is the
// mean over the folds; of rmse the root of the mean of its squares, which is that of all samples.
MeasuredDifference compare_fold_values(const std::string& metric,
                                       const std::vector<double>& of_a,
                                       const std::vector<double>& of_b,
                                       bool paired);

}  // namespace trireme::tools
