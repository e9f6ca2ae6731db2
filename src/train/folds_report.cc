// What cross-validation has found: each fold's metrics, their means and how certain those are.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "train/report_lines.h"
#include "train/steps_by_ranks.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/metrics/significance.h"
#include "trireme/train/training_report.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using detail::add_line;
using detail::concat;
using detail::counted;
using detail::metric_text;
using detail::was_interrupted;

std::int64_t reached_goal(const std::vector<TrainResult>& folds) {
  return std::ranges::count_if(folds, [](const TrainResult& fold) { return fold.goal_step > 0; });
}

// What a metric can be at all.
Interval range_of(const std::string& name) {
  constexpr double kAnything = std::numeric_limits<double>::infinity();
  return name == "perplexity" ? Interval{1, kAnything}
         : is_share(name)     ? Interval{0, 1}
                              : Interval{0, kAnything};
}

// What is averaged over the folds, which differ by a sample at most: the mean is then that of all
// samples, also of an rmse.
std::vector<double> to_average(const std::string& name, const std::vector<double>& values) {
  return name == "rmse" ? parts_of_root(values) : values;
}

// Means over folds of so few samples are not what they are called: of a single sample all of these
// are its accuracy.
void note_small_folds(std::string& table, const std::vector<TrainResult>& folds) {
  constexpr std::int64_t kFewest = 30;
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const TrainResult& fold : folds) {
    if (fold.evaluation.evaluated > 0 && fold.evaluation.metrics.contains("f1")) {
      fewest = std::min(fewest, fold.evaluation.evaluated);
    }
  }
  if (fewest < kFewest) {
    add_line(table,
             "note",
             concat("precision, recall and f1 are means over folds, of as few as {}: so few bias "
                    "them; take fewer folds, of {} samples or more each",
                    {counted(fewest, "sample"), kFewest}));
  }
}

void add_goal(std::string& table, const std::string& goal, const std::vector<TrainResult>& folds) {
  if (!goal.empty()) {
    add_line(table,
             "goal " + goal,
             concat("reached in {} of {}", {reached_goal(folds), counted(folds.size(), "fold")}));
  }
}

}  // namespace

std::string folds_table(const std::vector<TrainResult>& all, const std::string& goal) {
  std::vector<TrainResult> folds = all;  // that have come to their end
  const bool interrupted = std::erase_if(folds, was_interrupted) > 0;
  std::string table = "cross-validation, ";
  table += interrupted
               ? concat("interrupted in fold {}: {} finished\n",
                        {all.size(), folds.empty() ? "no fold" : counted(folds.size(), "fold")})
               : concat(counted(folds.size(), "fold"), "\n");
  if (folds.empty()) {
    return table;
  }
  for (const auto& [name, value] : folds.front().evaluation.metrics) {
    std::vector<double> values;
    std::string each;
    for (const TrainResult& fold : folds) {
      const auto found = fold.evaluation.metrics.find(name);
      if (found != fold.evaluation.metrics.end()) {
        values.push_back(found->second);
        each += (each.empty() ? "" : ", ") + metric_text(name, found->second);
      }
    }
    const MeanEstimate mean = mean_of(to_average(name, values));
    if (mean.count == 1) {
      add_line(table,
               name,
               concat(metric_text(name, mean.mean), " (one fold: its uncertainty is unknown)"));
      continue;
    }
    if (std::isinf(mean.interval95.high)) {
      add_line(table,
               name,
               concat("{} (the same in all {}: its uncertainty is unknown)",
                      {metric_text(name, mean.mean), counted(values.size(), "fold")}));
      continue;
    }
    const Interval interval = within(mean.interval95, range_of(name));
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    add_line(table,
             name,
             concat("{} (95 % interval {} to {}; folds {})",
                    {metric_text(name, mean.mean),
                     metric_text(name, interval.low),
                     metric_text(name, interval.high),
                     values.size() <= kMostFoldsShown
                         ? each
                         : concat("from {} to {}",
                                  {metric_text(name, *least), metric_text(name, *most)})}));
  }
  note_small_folds(table, folds);
  add_goal(table, goal, folds);
  return table;
}

std::string folds_json(const TrainSettings& settings, const std::vector<TrainResult>& folds) {
  Json json;
  TrainResult total;
  Json each = Json::array();
  std::map<std::string, std::vector<double>> metrics;
  double timed_steps = 0;
  double time = 0;  // of these, up to a factor that is the same for all folds: a step's samples
  for (const TrainResult& fold : folds) {
    // What was evaluated before an interruption is of a model that was not trained yet.
    const auto found =
        was_interrupted(fold) ? std::map<std::string, double>() : fold.evaluation.metrics;
    each.push_back(found);
    for (const StepsOnRanks& part : fold.steps_by_ranks) {  // counted through all folds
      detail::append_steps(total.steps_by_ranks,
                           {total.steps + part.from, total.steps + part.to, part.ranks});
    }
    total.steps += fold.steps;
    total.seconds += fold.seconds;
    const auto timed = static_cast<double>(
        fold.steps - (fold.steps > fold.untimed_steps ? fold.untimed_steps : 0));
    timed_steps += timed;
    time += fold.per_second > 0 ? timed / fold.per_second : 0;
    total.untimed_steps = fold.untimed_steps;
    total.communication_share += fold.seconds * fold.communication_share;
    total.data_share += fold.seconds * fold.data_share;
    total.record_share += fold.seconds * fold.record_share;
    total.save_share += fold.seconds * fold.save_share;
    total.processor_share += fold.seconds * fold.processor_share;
    total.counts_tokens = fold.counts_tokens;
    total.memory = fold.memory;
    total.built_in_parts = fold.built_in_parts;
    total.tensor_bytes = std::max(total.tensor_bytes, fold.tensor_bytes);
    total.loss += fold.loss / static_cast<double>(folds.size());
    total.micro_batch = fold.micro_batch;
    total.status = fold.status;
    total.machines = fold.machines;
    total.sum_group = fold.sum_group;
    total.rank_changes.times += fold.rank_changes.times;
    total.rank_changes.lost += fold.rank_changes.lost;
    total.rank_changes.left += fold.rank_changes.left;
    total.rank_changes.joined += fold.rank_changes.joined;
    total.rank_changes.steps_again += fold.rank_changes.steps_again;
    for (const auto& [name, value] : found) {
      metrics[name].push_back(value);
    }
  }
  total.per_second = time > 0 ? timed_steps / time : 0;
  for (const auto& [name, values] : metrics) {
    total.evaluation.metrics[name] = mean_of(to_average(name, values)).mean;
  }
  for (double* share : {&total.communication_share,
                        &total.data_share,
                        &total.record_share,
                        &total.save_share,
                        &total.processor_share}) {
    *share = total.seconds > 0 ? *share / total.seconds : 0;  // of the time of all folds
  }
  json = Json::parse(summary_json(settings, total));
  json.erase("evaluated_step");  // each fold has one of its own
  if (!settings.goal.empty()) {
    std::vector<TrainResult> ended = folds;
    std::erase_if(ended, was_interrupted);
    json["goal"] = {{"reached", reached_goal(ended)}, {"folds", ended.size()}};
  }
  json["folds"] = each;
  return json.dump(2) + "\n";
}

}  // namespace trireme
