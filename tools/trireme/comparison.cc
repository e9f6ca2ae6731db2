#include "comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "cost_comparison.h"
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
          "{} is not a finished run: it was {} after {}, before its last evaluation; {}",
          {name, run->status, detail::counted(run->steps, "step"), how_to_complete(run->folder)}));
    }
  }
}

// Why there is one number of each run: other settings help only where both have what there is to
// compare. How a run that was not finished is completed is said in a note.
std::string why_one_number(const Comparison& comparison, bool a_has_samples, bool b_has_samples) {
  std::string missing;
  std::string what_to_do;
  const auto look = [&](const char* name, const Run& run, bool has_samples) {
    if (has_samples || !run.folds.empty()) {
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

// The names that all of these have.
std::vector<std::string> common_names(
    const std::vector<const std::map<std::string, double>*>& all) {
  std::vector<std::string> names;
  for (const auto& entry : *all.front()) {
    const std::string& name = entry.first;
    if (std::ranges::all_of(all, [&](const auto* one) { return one->contains(name); })) {
      names.push_back(name);
    }
  }
  return names;
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
bool same_folds(const Comparison& comparison) {
  bool told = true;
  for (std::size_t fold = 1; fold <= comparison.a.folds.size(); ++fold) {
    const std::string name = "/fold-" + std::to_string(fold);
    const auto of_a = read_evaluation(comparison.a.folder + name);
    const auto of_b = read_evaluation(comparison.b.folder + name);
    if (of_a && of_b && !(same_samples(*of_a, *of_b) && may_be_the_same(*of_a, *of_b))) {
      return false;
    }
    told = told && of_a && of_b && !of_a->fingerprint.empty() && !of_b->fingerprint.empty();
  }
  return told || (same_cut(comparison) && other_question(comparison.settings).empty());
}

// One number of each run, and not even their difference: what they are numbers of differs.
void compare_nothing(Comparison& comparison, const Reasons& reasons) {
  comparison.basis = Basis::kNothing;
  comparison.basis_text = "not compared";
  comparison.not_compared.push_back({"results", reasons_text(reasons)});
  for (const std::string& name : common_names({&comparison.a.metrics, &comparison.b.metrics})) {
    comparison.metrics.push_back({name,
                                  comparison.a.metrics.at(name),
                                  comparison.b.metrics.at(name),
                                  {},
                                  1,
                                  {Better::kNeither, name + " is not compared"}});
  }
}

// What was not tested is no test among others that p-values are adjusted for.
void leave_untested(ComparedMetric& metric, const std::string& why) {
  metric.untested = true;
  metric.verdict.text = detail::concat(metric.name, " was not tested: ", why);
}

void compare_folds(Comparison& comparison) {
  const Run& a = comparison.a;
  const Run& b = comparison.b;
  const bool paired = same_folds(comparison);
  if (const Reasons reasons = other_question(comparison.settings); !paired && !reasons.empty()) {
    compare_nothing(comparison, reasons);
    return;
  }
  comparison.basis = Basis::kFolds;
  comparison.basis_text =
      detail::concat(detail::counted(a.folds.size(), "fold"),
                     paired ? ", the same in both" : ", of different samples",
                     "; folds share training data, so the true uncertainty is larger");
  if (!paired) {
    comparison.notes.emplace_back(
        "the folds hold different samples in A and B, so they are compared as two independent "
        "sets, which is less conclusive");
  }
  std::vector<const std::map<std::string, double>*> all;
  for (const Run* run : {&a, &b}) {
    for (const auto& fold : run->folds) {
      all.push_back(&fold);
    }
  }
  for (const std::string& name : common_names(all)) {
    std::vector<double> values_a;
    std::vector<double> values_b;
    for (std::size_t fold = 0; fold < a.folds.size(); ++fold) {
      values_a.push_back(a.folds[fold].at(name));
      values_b.push_back(b.folds[fold].at(name));
    }
    ComparedMetric metric{name, mean_of(values_a).mean, mean_of(values_b).mean, {}, 1, {}};
    if (a.folds.size() < 2) {
      leave_untested(metric, "a single fold has no spread");
    } else {
      metric.difference =
          paired ? paired_t_test(values_a, values_b) : welch_t_test(values_a, values_b);
      if (is_share(name)) {
        metric.difference->interval95 = within(metric.difference->interval95, {-1, 1});
      }
    }
    comparison.metrics.push_back(metric);
  }
}

// One number of each run; with `evaluated`, a test on the samples where the metric follows from
// them.
void compare_numbers(Comparison& comparison,
                     const std::optional<std::pair<Evaluation, Evaluation>>& evaluated) {
  const Run& a = comparison.a;
  const Run& b = comparison.b;
  const bool classes = a.metrics.contains("accuracy") && b.metrics.contains("accuracy");
  for (const std::string& name : common_names({&a.metrics, &b.metrics})) {
    ComparedMetric metric{name, a.metrics.at(name), b.metrics.at(name), {}, 1, {}};
    const auto tested = evaluated
                            ? compare_samples(name, evaluated->first, evaluated->second, classes)
                            : std::nullopt;
    if (tested) {
      metric.a = tested->a;
      metric.b = tested->b;
      metric.difference = tested->difference;
      if (!tested->difference) {
        leave_untested(metric, tested->why_untested);
      }
    } else {
      metric.verdict.text =
          detail::concat("nothing can be said about chance: there is one ", name, " of each run");
    }
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

// Of runs of which one is cross-validated. The mean over folds is that of several models, over all
// the data: no number of the other run is of the same.
std::string what_was_evaluated(const Run& a, const Run& b) {
  const auto text = [](const Run& run) {
    return run.folds.empty() ? std::string("one model on the part held out")
           : run.folds.size() == 1
               ? std::string("one model on its own fold")
               : detail::concat(run.folds.size(), " models, each on its own fold");
  };
  return detail::concat(
      "samples: {} in A and {} in B; to compare them, train both with the same --folds",
      {text(a), text(b)});
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
  if (!a.folds.empty() && a.folds.size() == b.folds.size()) {
    compare_folds(comparison);
    return;
  }
  if (a.folds.empty() != b.folds.empty()) {
    Reasons reasons = other_question(comparison.settings);
    reasons.push_back(what_was_evaluated(a, b));
    compare_nothing(comparison, reasons);
    return;
  }
  if (a.folds.size() != b.folds.size()) {
    Reasons reasons = other_question(comparison.settings);
    reasons.push_back(
        detail::concat("folds: {} in A and {} in B, so that no model of A was trained on as much "
                       "data as one of B, and no fold of one is a fold of the other; to compare "
                       "them, train both with the same --folds and --seed",
                       {a.folds.size(), b.folds.size()}));
    compare_nothing(comparison, reasons);
    return;
  }
  const auto of_a = read_evaluation(a.folder);
  const auto of_b = read_evaluation(b.folder);
  const bool both = of_a && of_b && !of_a->samples.empty();
  const bool pairs = both && same_samples(*of_a, *of_b) && may_be_the_same(*of_a, *of_b);
  const Reasons reasons = other_question(comparison.settings);
  if (!reasons.empty() && !(pairs && known_to_be_the_same(*of_a, *of_b))) {
    compare_nothing(comparison, reasons);
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

// The same question asked again, in other units: perplexity is exp(loss), and the micro average of
// F1 is the accuracy.
const ComparedMetric* same_question(const std::vector<ComparedMetric>& all,
                                    const ComparedMetric& metric) {
  const std::string other = metric.name == "perplexity" ? "loss"
                            : metric.name == "f1_micro" ? "accuracy"
                                                        : "";
  for (const ComparedMetric& each : all) {
    if (each.name == other && each.difference && metric.difference &&
        each.difference->p_value == metric.difference->p_value) {
      return &each;
    }
  }
  return nullptr;
}

// All metrics of the comparison at once: the more there are, the more likely chance makes one of
// them stand out.
void judge(Comparison& comparison) {
  std::vector<double> p_values;
  std::vector<ComparedMetric*> tested;
  for (ComparedMetric& metric : comparison.metrics) {
    if (metric.difference && same_question(comparison.metrics, metric) == nullptr) {
      tested.push_back(&metric);
      p_values.push_back(metric.difference->p_value);
    }
  }
  const std::vector<double> adjusted = holm_adjusted(p_values);
  for (std::size_t i = 0; i < tested.size(); ++i) {
    tested[i]->adjusted_p = adjusted[i];
  }
  for (ComparedMetric& metric : comparison.metrics) {
    if (!metric.difference) {
      continue;
    }
    if (const ComparedMetric* same = same_question(comparison.metrics, metric)) {
      metric.adjusted_p = same->adjusted_p;
      metric.same_as = same->name;
    }
    metric.verdict = verdict_on(metric.name, *metric.difference, metric.adjusted_p, tested.size());
  }
}

std::string no_common_metric(const Comparison& comparison) {
  std::string without;
  for (const auto& [name, run] : {std::pair("A", &comparison.a), std::pair("B", &comparison.b)}) {
    if (run->metrics.empty() && run->folds.empty()) {
      without += detail::concat(without.empty() ? "" : " and ", name);
    }
  }
  return detail::concat(
      "the runs have no metric in common",
      without.empty()
          ? ""
          : detail::concat(": nothing was evaluated in ",
                           without,
                           ", which takes samples that are not trained on: --eval-data FILE, or "
                           "--eval-fraction above 0"));
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
  judge(comparison);
  if (comparison.metrics.empty()) {
    comparison.notes.emplace_back(no_common_metric(comparison));
  }
  compare_costs(comparison);
  return comparison;
}

}  // namespace trireme::tools
