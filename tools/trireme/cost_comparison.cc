#include "cost_comparison.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "sample_tests.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

std::vector<RunLog> logs_of(const Run& run) {
  std::vector<RunLog> logs;
  for (const std::string& folder : log_folders(run.folder)) {
    if (has_log(folder)) {
      logs.push_back(read_log(folder));
    }
  }
  return logs;
}

// Whether the data is the same, whatever it was called: both were evaluated on the same samples.
bool known_same_data(const Comparison& comparison) {
  for (const std::string& part : {std::string(), std::string("/fold-1")}) {
    const auto of_a = read_evaluation(comparison.a.folder + part);
    const auto of_b = read_evaluation(comparison.b.folder + part);
    if (of_a && of_b) {
      return same_samples(*of_a, *of_b) && known_to_be_the_same(*of_a, *of_b);
    }
  }
  return false;
}

double ranks_of(const Run& run) {
  const auto found = run.settings.find("ranks");
  return found == run.settings.end() ? 0 : std::strtod(found->second.c_str(), nullptr);
}

// A rank that was lost computed a part of the steps: no number of ranks had this speed.
void note_changed_ranks(Comparison& comparison) {
  for (const auto& [name, run] : {std::pair("A", &comparison.a), std::pair("B", &comparison.b)}) {
    const Run::RankChanges& changes = run->rank_changes;
    const std::string& parts = run->steps_by_ranks;
    if (changes.times > 0) {
      comparison.speed_notes.push_back(detail::concat(
          "the ranks of {} changed {} while it trained ({} lost, {} left, {} joined{}): its speed "
          "is the mean over different numbers of ranks",
          {name,
           detail::counted(changes.times, "time"),
           changes.lost,
           changes.left,
           changes.joined,
           parts.empty() ? "" : "; ranks: " + parts}));
    } else if (!parts.empty()) {
      comparison.speed_notes.push_back(detail::concat(
          "the ranks of {} changed while it trained ({}): its speed is the mean over "
          "different numbers of ranks",
          {name, parts}));
    }
  }
}

void compare_scaling(Comparison& comparison, Reasons reasons) {
  const double a = ranks_of(comparison.a);
  const double b = ranks_of(comparison.b);
  if (!(a > 0 && b > 0) || a == b) {
    return;
  }
  if (!comparison.speed_notes.empty()) {
    reasons.emplace_back("ranks in the course of a run");
  }
  if (!reasons.empty()) {
    comparison.not_compared.push_back({"scaling with the ranks", reasons_text(reasons)});
    return;
  }
  if (!comparison.speed->why_untested.empty()) {
    comparison.not_compared.push_back({"scaling with the ranks", comparison.speed->why_untested});
    return;
  }
  const double speed_up = comparison.speed->ratio();
  comparison.scaling = Scaling{.few = std::min(a, b),
                               .many = std::max(a, b),
                               .efficiency = a < b ? speed_up / (b / a) : 1 / speed_up / (a / b)};
}

}  // namespace

// Only the same work, done by the same machine, has two speeds of which one is better.
void compare_costs(Comparison& comparison) {
  const std::vector<RunLog> a = logs_of(comparison.a);
  const std::vector<RunLog> b = logs_of(comparison.b);
  comparison.speed_a = speed_of(a);
  comparison.speed_b = speed_of(b);
  if (!comparison.speed_a || !comparison.speed_b) {
    return;
  }
  note_changed_ranks(comparison);
  const bool same_data = known_same_data(comparison);
  Reasons reasons = other_work(comparison.settings, same_data);
  if (!comparison.a.machine.empty() && !comparison.b.machine.empty() &&
      comparison.a.machine != comparison.b.machine) {
    reasons.push_back(
        detail::concat("machine: ", comparison.a.machine, " and ", comparison.b.machine));
  }
  if (!reasons.empty()) {
    comparison.not_compared.push_back({"speed", reasons_text(reasons)});
    return;
  }
  comparison.speed = compare_speed(a, b);
  if (comparison.speed) {
    compare_scaling(comparison, more_than_ranks(comparison.settings, same_data));
  }
}

}  // namespace trireme::tools
