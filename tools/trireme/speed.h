#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run_reader.h"
#include "trireme/metrics/significance.h"

// How fast two runs were.

namespace trireme::tools {

struct Speed {
  double per_second = 0;  // all samples (or tokens) divided by all seconds
  std::int64_t steps = 0;
};

struct RunSpeed {
  std::string unit;  // "tokens" or "samples"
  Speed speed;
};

struct ComparedSpeed {
  std::string unit;  // "tokens" or "samples"
  Speed a;
  Speed b;
  Difference log_ratio;        // of B to A, with what its steps tell about chance
  std::string why_untested{};  // where they tell nothing

  double ratio() const;  // how many times as fast as A B is
  Interval ratio95() const;
};

// In tokens where the log has them. Nothing where it has no steps.
std::optional<RunSpeed> speed_of(const std::vector<RunLog>& logs);

// Of runs that did the same work. Without the first steps of each log (observe/throughput.h).
// Nothing where a run has no steps. Other runs of the same may differ by more than the steps of
// one: nothing of that is in its interval.
std::optional<ComparedSpeed> compare_speed(const std::vector<RunLog>& a,
                                           const std::vector<RunLog>& b);

}  // namespace trireme::tools
