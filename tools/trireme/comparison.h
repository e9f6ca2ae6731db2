#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run_reader.h"
#include "speed.h"
#include "trireme/metrics/significance.h"
#include "verdict.h"

// Two runs side by side, and what of their difference is more than chance.

namespace trireme::tools {

// What the tests are on.
enum class Basis { kFolds, kSamples, kOneNumber };

struct ComparedMetric {
  std::string name;
  double a = 0;
  double b = 0;
  std::optional<Difference> difference;  // nothing where there is one number per run
  double adjusted_p = 1;                 // its p-value, as one of several tests
  Verdict verdict;
};

struct ComparedSetting {
  std::string name;
  std::string a;  // "-" where the run has no such setting
  std::string b;
};

struct Comparison {
  Run a;
  Run b;
  Basis basis = Basis::kOneNumber;
  std::string basis_text;          // what the tests are on, for people
  std::vector<std::string> notes;  // what makes the runs hard to compare
  std::vector<ComparedMetric> metrics;
  std::optional<ComparedSpeed> speed;
  std::vector<ComparedSetting> settings;  // those that differ
};

Comparison compare_runs(const std::string& folder_a, const std::string& folder_b);

}  // namespace trireme::tools
