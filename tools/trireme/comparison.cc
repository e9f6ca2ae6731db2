#include "comparison.h"

#include <algorithm>
#include <set>

#include "cost_comparison.h"
#include "fold_comparison.h"
#include "judgement.h"
#include "sample_tests.h"
#include "train_resume.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

constexpr const char* kHowToKnowMore =
    "there is only one number per run, and nothing can be said about chance; to know more, train "
    "both with --folds 5 and the same --seed, or evaluate both on the same file (--eval-data "
    "FILE): without one, the part held out depends on --seed";

std::vector<ComparedSetting> differing_settings(const Run& a, const Run& b) {
  std::set<std::string> names;
  for (const Run* run : {&a, &b}) {
    for (const auto& [name, value] : run->settings) {
      names.insert(name);
    }
  }
  const auto value_in = [](const Run& run, const std::string& name) {
    const auto found = run.settings.find(name);
    return found == run.settings.end() ? std::string("-") : found->second;
  };
  std::vector<ComparedSetting> differing;
  for (const std::string& name : names) {
    const ComparedSetting setting{name, value_in(a, name), value_in(b, name)};
    if (setting.a != setting.b) {
      differing.push_back(setting);
    }
  }
  return differing;
}

void note_unfinished(Comparison& comparison) {
  for (const auto& [name, run] : {std::pair("A", &comparison.a), std::pair("B", &comparison.b)}) {
    if (run->status != "finished") {
      comparison.notes.push_back(detail::concat(
          "{} is not a finished run: it was {} after {}, {}; {}",
          {name,
           run->status,
           detail::counted(run->steps, "step"),
           run->planned_folds > 0 ? detail::concat("when {} of its {} had finished",
                                                   {run->finished_folds().size(),
                                                    detail::counted(run->planned_folds, "fold")})
                                  : std::string("before its last evaluation"),
           how_to_complete(run->folder)}));
    }
  }
}

// Why there is one number of each run: other settings help only where both have what there is to
// compare. How a run that was not finished is completed is said in a note.
std::string why_one_number(const Comparison& comparison, bool a_has_samples, bool b_has_samples) {
  std::string missing;
  std::string what_to_do;
  const auto look = [&](const char* name, const Run& run, bool has_samples) {
    if (has_samples) {
      return;
    }
    missing += detail::concat(missing.empty() ? "" : " and ", name);
    if (run.status == "finished" && !run.metrics.empty()) {
      what_to_do += detail::concat("; ", name, ": ", how_to_complete(run.folder));
    }
  };
  look("A", comparison.a, a_has_samples);
  look("B", comparison.b, b_has_samples);
  return missing.empty()
             ? kHowToKnowMore
             : detail::concat(
                   "there is only one number per run, and nothing can be said about "
                   "chance: the results of each sample, which the last evaluation writes "
                   "(evaluation.csv), are missing in ",
                   missing,
                   what_to_do);
}

// One number of each run; with `evaluated`, a test on the samples where the metric follows from
// them.
void compare_numbers(Comparison& comparison,
                     const std::optional<std::pair<Evaluation, Evaluation>>& evaluated) {
  const Run& a = comparison.a;
  const Run& b = comparison.b;
  const bool classes = a.metrics.contains("accuracy") && b.metrics.contains("accuracy");
  for (const std::string& name : common_names({&a.metrics, &b.metrics})) {
    const auto tested = evaluated
                            ? compare_samples(name, evaluated->first, evaluated->second, classes)
                            : std::nullopt;
    if (tested) {
      comparison.metrics.push_back(compared_metric(name, *tested));
      continue;
    }
    ComparedMetric metric{name, a.metrics.at(name), b.metrics.at(name), {}, 1, {}};
    metric.verdict.text =
        detail::concat("nothing can be said about chance: there is one ", name, " of each run");
    comparison.metrics.push_back(metric);
  }
}

// Of evaluations that are no pairs.
const char* what_differs(const Evaluation& a, const Evaluation& b) {
  return a.samples != b.samples                       ? ", with different sample numbers"
         : a.targets != b.targets || a.text != b.text ? ", with different targets"
         : !a.text ? ", with the same targets but different content"
         : may_be_the_same(a, b)
             ? " windows of a text, but the summary.json of one of them does not "
               "say of which (evaluation_fingerprint)"
             : " windows of another text";
}

// Whether it is only chance by which the runs differ, as of a run that is repeated.
bool differ_in_seed_only(const Comparison& comparison) {
  const auto is = [&](const char* name) {
    return std::ranges::count(comparison.settings, name, &ComparedSetting::name);
  };
  return is("seed") == 1 && comparison.settings.size() == static_cast<std::size_t>(1 + is("run"));
}

void note_seeds(Comparison& comparison) {
  if (!differ_in_seed_only(comparison)) {
    return;
  }
  if (comparison.basis == Basis::kOneNumber) {
    comparison.basis_text =
        "there is only one number per run, and nothing can be said about chance: the runs differ "
        "in their seed, which decides both how they train and, without --eval-data, what is held "
        "out; to see what training alone does, evaluate both on the same file (--eval-data FILE)";
  } else {
    comparison.notes.emplace_back(
        "the runs differ in their seed only; \"chance\" is that of the samples or folds they were "
        "evaluated on, and says nothing about how much results vary between seeds");
  }
}

void compare_metrics(Comparison& comparison) {
  const Run& a = comparison.a;
  const Run& b = comparison.b;
  if (a.planned_folds > 0 || b.planned_folds > 0) {
    compare_folds(comparison);
    return;
  }
  const auto of_a = read_evaluation(a.folder);
  const auto of_b = read_evaluation(b.folder);
  const bool both = of_a && of_b && !of_a->samples.empty();
  const bool pairs = both && same_samples(*of_a, *of_b) && may_be_the_same(*of_a, *of_b);
  const Reasons reasons = other_question(comparison.settings);
  if (!reasons.empty() && !(pairs && known_to_be_the_same(*of_a, *of_b))) {
    compare_nothing(comparison, reasons_text(reasons));
    return;
  }
  if (pairs) {
    comparison.basis = Basis::kSamples;
    comparison.basis_text = detail::concat(of_a->samples.size(),
                                           of_a->text ? " windows of text" : " evaluated samples",
                                           ", the same in both");
    compare_numbers(comparison, std::pair(*of_a, *of_b));
    return;
  }
  if (both) {
    comparison.notes.push_back(
        detail::concat("the runs were not evaluated on the same samples: A on {}, B on {}{}",
                       {of_a->samples.size(), of_b->samples.size(), what_differs(*of_a, *of_b)}));
  }
  comparison.basis_text = why_one_number(comparison, of_a.has_value(), of_b.has_value());
  compare_numbers(comparison, std::nullopt);
}

std::string no_common_metric(const Comparison& comparison) {
  std::string without;
  bool all_finished = true;
  for (const auto& [name, run] : {std::pair("A", &comparison.a), std::pair("B", &comparison.b)}) {
    if (run->metrics.empty()) {
      without += detail::concat(without.empty() ? "" : " and ", name);
      all_finished = all_finished && run->status == "finished";
    }
  }
  return detail::concat(
      "the runs have no metric in common",
      without.empty()
          ? ""
          : detail::concat(": nothing was evaluated in ",
                           without,
                           all_finished
                               ? ", which takes samples that are not trained on: --eval-data FILE, "
                                 "or --eval-fraction above 0"
                               : ", which ended before an evaluation: resume it, or evaluate more "
                                 "often (--eval-every)"));
}

}  // namespace

Comparison compare_runs(const std::string& folder_a, const std::string& folder_b) {
  Comparison comparison;
  comparison.a = read_run(folder_a);
  comparison.b = read_run(folder_b);
  comparison.settings = differing_settings(comparison.a, comparison.b);
  note_unfinished(comparison);
  compare_metrics(comparison);
  note_seeds(comparison);
  judge(comparison.metrics);
  if (comparison.metrics.empty() && comparison.basis != Basis::kNothing) {
    comparison.notes.emplace_back(no_common_metric(comparison));
  }
  compare_costs(comparison);
  return comparison;
}

}  // namespace trireme::tools
