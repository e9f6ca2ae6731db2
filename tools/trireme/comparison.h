#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run_reader.h"
#include "same_work.h"
#include "sample_tests.h"
#include "speed.h"
#include "trireme/metrics/significance.h"
#include "verdict.h"

// Two runs side by side, and what of their difference is more than chance.

namespace trireme::tools {

// What the tests are on.
enum class Basis {
  kFolds,
  kSamples,
  kOneNumber,
  kNothing,  // the results answer different questions: nothing is compared
};

struct ComparedMetric {
  std::string name;
  double a = 0;
  double b = 0;
  std::optional<Difference> difference;  // nothing where nothing was tested
  double adjusted_p = 1;                 // its p-value, as one of several tests
  Verdict verdict;
  std::string same_as{};  // the metric that asks the same question, if there is one
  bool untested = false;  // although there is more than one number per run
  Scale scale = Scale::kDifference;
};

// Whether there is a p-value: of values that are not finite there is none.
bool has_p_value(const ComparedMetric& metric);

// As far as it was tested; judge() says what comes of it.
ComparedMetric compared_metric(const std::string& name, const MeasuredDifference& found);

struct NotCompared {
  std::string what;  // "speed"
  std::string why;   // "different model: mlp and gpt"
};

// How much of the additional ranks arrived as speed.
struct Scaling {
  double few = 0;
  double many = 0;
  double efficiency = 0;  // 1: many / few times the speed
};

struct Comparison {
  Run a;
  Run b;
  Basis basis = Basis::kOneNumber;
  std::string basis_text;          // what the tests are on, for people
  std::vector<std::string> notes;  // what makes the runs hard to compare
  std::vector<ComparedMetric> metrics;
  std::vector<NotCompared> not_compared;
  std::optional<RunSpeed> speed_a;
  std::optional<RunSpeed> speed_b;
  std::optional<ComparedSpeed> speed;     // where both did the same work
  std::vector<std::string> speed_notes;   // what their speeds are not of
  std::optional<Scaling> scaling;         // where only the number of ranks differs
  std::vector<ComparedSetting> settings;  // those that differ
};

Comparison compare_runs(const std::string& folder_a, const std::string& folder_b);

}  // namespace trireme::tools
