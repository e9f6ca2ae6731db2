#include "fold_comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

#include "judgement.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

using Folds = std::vector<std::size_t>;  // from 0

Folds finished_in_both(const Run& a, const Run& b) {
  const Folds of_a = a.finished_folds();
  const Folds of_b = b.finished_folds();
  Folds both;
  std::ranges::set_intersection(of_a, of_b, std::back_inserter(both));
  return both;
}

// Whether both runs were told to cut the same data in the same way.
bool same_cut(const Comparison& comparison) {
  constexpr std::array<std::string_view, 9> kWhatCuts = {
      "data", "format", "folds", "seed", "sequence", "stride", "target", "header", "separator"};
  return std::ranges::none_of(comparison.settings, [&](const ComparedSetting& differing) {
    return std::ranges::find(kWhatCuts, differing.name) != kWhatCuts.end();
  });
}

// Whether fold k is of the same samples in both: runs with other seeds cut the data elsewhere, and
// their folds are no pairs. Where the evaluations do not tell, the settings have to.
bool same_folds(const Comparison& comparison, const Folds& folds) {
  bool told = !folds.empty();
  for (const std::size_t fold : folds) {
    const std::string name = "/fold-" + std::to_string(fold + 1);
    const auto of_a = read_evaluation(comparison.a.folder + name);
    const auto of_b = read_evaluation(comparison.b.folder + name);
    if (of_a && of_b && !(same_samples(*of_a, *of_b) && may_be_the_same(*of_a, *of_b))) {
      return false;
    }
    told = told && of_a && of_b && !of_a->fingerprint.empty() && !of_b->fingerprint.empty();
  }
  return told || (same_cut(comparison) && other_question(comparison.settings).empty());
}

// Of runs of which one is cross-validated. The mean over folds is that of several models, over all
// the data: no number of the other run is of the same.
std::string what_was_evaluated(const Run& a, const Run& b) {
  const auto text = [](const Run& run) {
    return run.planned_folds == 0 ? std::string("one model on the part held out")
                                  : detail::concat(detail::counted(run.planned_folds, "model"),
                                                   ", each on its own fold");
  };
  return detail::concat(
      "samples: {} in A and {} in B; to compare them, train both with the same --folds",
      {text(a), text(b)});
}

// "3 of 4 folds (those that both have finished), the same in both".
std::string folds_text(const Run& a, const Folds& of_a, const Folds& of_b, bool paired) {
  const auto planned = static_cast<std::size_t>(a.planned_folds);
  const std::string folds = detail::counted(planned, "fold");
  if (of_a.size() == planned && of_b.size() == planned) {
    return folds + (paired ? ", the same in both" : ", of different samples");
  }
  return paired
             ? detail::concat(
                   of_a.size(), " of ", folds, " (those that both have finished), the same in both")
             : detail::concat("{} of {} in A and {} in B have finished, of different samples",
                              {of_a.size(), folds, of_b.size()});
}

std::vector<double> values_of(const Run& run, const Folds& folds, const std::string& name) {
  std::vector<double> values;
  for (const std::size_t fold : folds) {
    values.push_back(run.folds[fold].at(name));
  }
  return values;
}

}  // namespace

void compare_folds(Comparison& comparison) {
  const Run& a = comparison.a;
  const Run& b = comparison.b;
  Reasons reasons = other_question(comparison.settings);
  if (a.planned_folds == 0 || b.planned_folds == 0) {
    reasons.push_back(what_was_evaluated(a, b));
    compare_nothing(comparison, reasons_text(reasons));
    return;
  }
  if (a.planned_folds != b.planned_folds) {
    reasons.push_back(
        detail::concat("folds: {} in A and {} in B, so that no model of A was trained on as much "
                       "data as one of B, and no fold of one is a fold of the other; to compare "
                       "them, train both with the same --folds and --seed",
                       {a.planned_folds, b.planned_folds}));
    compare_nothing(comparison, reasons_text(reasons));
    return;
  }
  const Folds both = finished_in_both(a, b);
  const bool paired = same_folds(comparison, both);
  if (!paired && !reasons.empty()) {
    compare_nothing(comparison, reasons_text(reasons));
    return;
  }
  const Folds of_a = paired ? both : a.finished_folds();
  const Folds of_b = paired ? both : b.finished_folds();
  if (of_a.empty() || of_b.empty()) {
    compare_nothing(comparison,
                    detail::concat("of {}, {} finished in A and {} in B: there is none to compare",
                                   {detail::counted(a.planned_folds, "fold"),
                                    a.finished_folds().size(),
                                    b.finished_folds().size()}));
    return;
  }
  comparison.basis = Basis::kFolds;
  comparison.basis_text = folds_text(a, of_a, of_b, paired) +
                          "; folds share training data, so the true uncertainty is larger";
  if (!paired) {
    comparison.notes.emplace_back(
        "the folds hold different samples in A and B, so they are compared as two independent "
        "sets; if they were cut from the same rows, they are not quite that, and the result is a "
        "rough one: give both runs the same --seed");
  }
  std::vector<const std::map<std::string, double>*> all;
  for (const std::size_t fold : of_a) {
    all.push_back(&a.folds[fold]);
  }
  for (const std::size_t fold : of_b) {
    all.push_back(&b.folds[fold]);
  }
  for (const std::string& name : common_names(all)) {
    comparison.metrics.push_back(compared_metric(
        name,
        compare_fold_values(name, values_of(a, of_a, name), values_of(b, of_b, name), paired)));
  }
}

}  // namespace trireme::tools
