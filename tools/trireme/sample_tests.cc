#include "sample_tests.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "permuted_metrics.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

MeasuredDifference by_paired_t(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() < 2) {
    return {mean(a), mean(b), std::nullopt, "a single sample has no spread"};
  }
  return with_spread(
      {mean(a), mean(b), paired_t_test(a, b)}, a == b, detail::counted(a.size(), "sample"));
}

// What each sample adds to the mean: windows count by their tokens, the same in both runs, so that
// the mean is that over all tokens.
std::vector<double> weighted(const std::vector<double>& values, const Evaluation& run) {
  if (!run.text) {
    return values;
  }
  const double tokens = mean(run.targets);
  std::vector<double> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = values[i] * run.targets[i] / tokens;
  }
  return result;
}

std::vector<double> window_accuracies(const Evaluation& run) {
  std::vector<double> result(run.samples.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = run.targets[i] > 0 ? run.predictions[i] / run.targets[i] : 0;
  }
  return weighted(result, run);
}

std::vector<std::uint8_t> hits(const Evaluation& run) {
  std::vector<std::uint8_t> result(run.samples.size());
  std::transform(run.targets.begin(),
                 run.targets.end(),
                 run.predictions.begin(),
                 result.begin(),
                 [](double target, double prediction) { return target == prediction ? 1 : 0; });
  return result;
}

std::vector<double> errors(const Evaluation& run, const std::function<double(double)>& of) {
  std::vector<double> result(run.samples.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = of(run.predictions[i] - run.targets[i]);
  }
  return result;
}

// Perplexity is exp(loss): the difference of two losses says exactly how many times as large one
// perplexity is as the other, and not how much larger, for which neither is known well enough.
MeasuredDifference perplexity_of(const MeasuredDifference& loss) {
  MeasuredDifference result = loss;
  result.a = std::exp(loss.a);
  result.b = std::exp(loss.b);
  result.scale = Scale::kLogRatio;
  if (result.difference) {
    result.difference->test = "paired t-test of the loss";
  }
  return result;
}

}  // namespace

MeasuredDifference with_spread(MeasuredDifference found, bool same, const std::string& what) {
  if (found.difference && std::isinf(found.difference->interval95.high)) {
    if (same) {
      found.difference->interval95 = {};
    } else {
      found.difference.reset();
      found.why_untested = detail::concat(
          "the difference is the same in all {}, and what shows no spread says nothing about "
          "chance",
          {what});
    }
  }
  return found;
}

bool same_samples(const Evaluation& a, const Evaluation& b) {
  const bool told = !a.text || (!a.fingerprint.empty() && a.fingerprint == b.fingerprint);
  return told && a.text == b.text && a.samples == b.samples && a.targets == b.targets;
}

bool may_be_the_same(const Evaluation& a, const Evaluation& b) {
  return a.fingerprint.empty() || b.fingerprint.empty() || a.fingerprint == b.fingerprint;
}

bool known_to_be_the_same(const Evaluation& a, const Evaluation& b) {
  return !a.fingerprint.empty() && a.fingerprint == b.fingerprint;
}

std::optional<MeasuredDifference> compare_samples(const std::string& metric,
                                                  const Evaluation& a,
                                                  const Evaluation& b,
                                                  bool classes) {
  const auto loss = [&] { return by_paired_t(weighted(a.losses, a), weighted(b.losses, b)); };
  if (metric == "loss") {
    return loss();
  }
  if (metric == "perplexity") {
    return perplexity_of(loss());
  }
  if (a.text) {
    return metric == "accuracy"
               ? std::optional(by_paired_t(window_accuracies(a), window_accuracies(b)))
               : std::nullopt;
  }
  if (classes) {
    // With one label per sample, the micro average of F1 is the accuracy.
    if (metric == "accuracy" || metric == "f1_micro") {
      const auto hits_a = hits(a);
      const auto hits_b = hits(b);
      Difference difference = mcnemar_test(hits_a, hits_b);
      if (hits_a == hits_b) {
        difference.interval95 = {};  // as of every other metric
      }
      const double value_a = static_cast<double>(std::count(hits_a.begin(), hits_a.end(), 1)) /
                             static_cast<double>(hits_a.size());
      return MeasuredDifference{value_a, value_a + difference.mean, difference};
    }
    return compare_class_scores(metric, a, b);
  }
  if (metric == "mae" || metric == "mse") {
    const auto of = [&](double error) {
      return metric == "mae" ? std::fabs(error) : error * error;
    };
    return by_paired_t(errors(a, of), errors(b, of));
  }
  const auto square = [](double error) { return error * error; };
  return metric == "rmse"
             ? std::optional(compare_root_mean_squares(errors(a, square), errors(b, square)))
             : std::nullopt;
}

MeasuredDifference compare_fold_values(const std::string& metric,
                                       const std::vector<double>& of_a,
                                       const std::vector<double>& of_b,
                                       bool paired) {
  const bool roots = metric == "rmse";
  const std::vector<double> a = roots ? parts_of_root(of_a) : of_a;
  const std::vector<double> b = roots ? parts_of_root(of_b) : of_b;
  MeasuredDifference found{mean_of(a).mean, mean_of(b).mean, std::nullopt};
  if (a.size() < 2 || b.size() < 2) {
    found.why_untested = "a single fold has no spread";
    return found;
  }
  found.difference = paired ? paired_t_test(a, b) : welch_t_test(a, b);
  found = with_spread(found, a == b, detail::counted(std::max(a.size(), b.size()), "fold"));
  if (found.difference && is_share(metric)) {
    found.difference->interval95 = within(found.difference->interval95, {-1, 1});
  }
  return found;
}

}  // namespace trireme::tools
