#include "judgement.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

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

}  // namespace

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

void compare_nothing(Comparison& comparison, const std::string& why) {
  comparison.basis = Basis::kNothing;
  comparison.basis_text = "not compared";
  comparison.not_compared.push_back({"results", why});
  for (const std::string& name : common_names({&comparison.a.metrics, &comparison.b.metrics})) {
    comparison.metrics.push_back({name,
                                  comparison.a.metrics.at(name),
                                  comparison.b.metrics.at(name),
                                  {},
                                  1,
                                  {Better::kNeither, name + " is not compared"}});
  }
}

bool has_p_value(const ComparedMetric& metric) {
  return metric.difference && !std::isnan(metric.difference->p_value);
}

// What was not tested is no test among others that p-values are adjusted for.
ComparedMetric compared_metric(const std::string& name, const MeasuredDifference& found) {
  ComparedMetric metric{name, found.a, found.b, found.difference, 1, {}};
  metric.scale = found.scale;
  metric.untested = !found.difference;
  if (metric.untested) {
    metric.verdict.text = detail::concat(name, " was not tested: ", found.why_untested);
  }
  return metric;
}

void judge(std::vector<ComparedMetric>& metrics) {
  std::vector<double> p_values;
  std::vector<ComparedMetric*> tested;
  for (ComparedMetric& metric : metrics) {
    if (metric.difference && !has_p_value(metric)) {
      metric.adjusted_p = metric.difference->p_value;
    } else if (metric.difference && same_question(metrics, metric) == nullptr) {
      tested.push_back(&metric);
      p_values.push_back(metric.difference->p_value);
    }
  }
  const std::vector<double> adjusted = holm_adjusted(p_values);
  for (std::size_t i = 0; i < tested.size(); ++i) {
    tested[i]->adjusted_p = adjusted[i];
  }
  for (ComparedMetric& metric : metrics) {
    if (!metric.difference) {
      continue;
    }
    if (const ComparedMetric* same = same_question(metrics, metric)) {
      metric.adjusted_p = same->adjusted_p;
      metric.same_as = same->name;
    }
    metric.verdict =
        verdict_on(metric.name, *metric.difference, metric.adjusted_p, tested.size(), metric.scale);
  }
}

}  // namespace trireme::tools
