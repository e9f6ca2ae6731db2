#include "trireme/train/training_report.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/core/proc_files.h"
#include "trireme/metrics/significance.h"
#include "trireme/observe/progress_line.h"
#include "trireme/settings/settings_table.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using detail::concat;
using detail::counted;

const char* status_name(TrainResult::Status status) {
  switch (status) {
    case TrainResult::Status::kFinished:
      return "finished";
    case TrainResult::Status::kStoppedEarly:
      return "finished";  // by its own rule
    case TrainResult::Status::kInterrupted:
      return "interrupted";
  }
  return "";
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

std::string digits_of(std::uint64_t fingerprint) {
  char digits[24];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(fingerprint));
  return digits;
}

// "1.50 updates on average, 3 at most".
std::string staleness_text(const StaleUse& use) {
  double sum = 0;
  double count = 0;
  std::size_t most = 0;
  for (std::size_t updates = 0; updates < use.staleness.size(); ++updates) {
    const auto gradients = static_cast<double>(use.staleness[updates]);
    sum += static_cast<double>(updates) * gradients;
    count += gradients;
    most = gradients > 0 ? updates : most;
  }
  return concat("{} updates on average, {}{}",
                {format("%.2f", count > 0 ? sum / count : 0),
                 most,
                 most + 1 == StaleUse::kMost ? " or more" : " at most"});
}

// Who was behind: "rank 2, for 1.31 s; 0.02 s for all others".
std::string held_up_text(const StaleUse& use) {
  const auto most = std::ranges::max_element(use.held_up);
  double others = 0;
  for (auto rank = use.held_up.begin(); rank != use.held_up.end(); ++rank) {
    others += rank == most ? 0 : *rank;
  }
  return most == use.held_up.end()
             ? "nobody"
             : concat(
                   "rank {}, for {}; {} for all others",
                   {most - use.held_up.begin(), format("%.2f s", *most), format("%.2f s", others)});
}

std::string metric_text(const std::string& name, double value) {
  return is_share(name) ? format("%.2f %%", 100 * value) : measure_text(value);
}

// What a metric can be at all.
Interval range_of(const std::string& name) {
  constexpr double kAnything = std::numeric_limits<double>::infinity();
  return name == "perplexity" ? Interval{1, kAnything}
         : is_share(name)     ? Interval{0, 1}
                              : Interval{0, kAnything};
}

void add_line(std::string& table, const std::string& name, const std::string& value) {
  constexpr std::size_t kNameWidth = 24;
  table += "  " + name + std::string(name.size() < kNameWidth ? kNameWidth - name.size() : 1, ' ') +
           value + "\n";
}

bool was_interrupted(const TrainResult& result) {
  return result.status == TrainResult::Status::kInterrupted;
}

// The rank that holds most.
const MemoryUse* largest(const MemoryReport& memory) {
  const MemoryUse* most = nullptr;
  for (const MemoryUse& use : memory.ranks) {
    most = most == nullptr || use.total() > most->total() ? &use : most;
  }
  return most;
}

}  // namespace

std::string summary_table(const TrainSettings& settings, const TrainResult& result) {
  std::string table = "summary\n";
  add_line(table, "model", concat(settings.model, " on ", settings.data));
  add_line(table,
           "ranks",
           concat(settings.ranks,
                  settings.zero > 0    ? concat(", ZeRO-", settings.zero)
                  : settings.ranks > 1 ? ", DDP"
                                       : "",
                  ", ",
                  value_text("precision", settings)));
  add_line(
      table,
      "steps",
      concat("{} in {}, batch {} of micro-batches of {}",
             {result.steps, duration_text(result.seconds), settings.batch, result.micro_batch}));
  if (was_interrupted(result)) {
    add_line(table, "interrupted", "the last step was finished and its weights are kept");
  }
  if (const RankChanges& changes = result.rank_changes; changes.times > 0) {
    add_line(table,
             "ranks changed",
             concat("{}: {} lost, {} left, {} joined; {} computed again",
                    {counted(changes.times, "time"),
                     changes.lost,
                     changes.left,
                     changes.joined,
                     counted(changes.steps_again, "step")}));
  }
  add_line(table, "training loss", measure_text(result.loss));
  for (const auto& [name, value] : result.evaluation.metrics) {
    add_line(table, "evaluation " + name, metric_text(name, value));
  }
  if (!result.evaluation.metrics.empty() && result.evaluated_step != result.steps) {
    add_line(table,
             "evaluated",
             concat("after step {}, and not after the last one", {result.evaluated_step}));
  }
  if (!result.best.empty() && result.best_step != result.steps) {
    add_line(table,
             "best",
             concat("{} {} in step {}",
                    {settings.best,
                     metric_text(settings.best, result.best.at(settings.best)),
                     result.best_step}));
  }
  add_line(
      table,
      "throughput",
      concat(count_text(result.per_second), result.counts_tokens ? " tokens/s" : " samples/s"));
  if (!settings.goal.empty()) {
    add_line(table,
             "goal " + settings.goal,
             result.goal_step > 0 ? concat("reached in step {} after {}",
                                           {result.goal_step, duration_text(result.goal_seconds)})
                                  : "not reached");
  }
  add_line(table, "processors per rank", format("%.2f", result.processor_share));
  add_line(table, "time in communication", format("%.1f %%", 100 * result.communication_share));
  if (const CompressionUse& use = result.compression; use.sent_bytes > 0) {
    add_line(table,
             "compressed gradients",
             concat("{}: {} sent by a rank instead of {}, {} of encoding{}",
                    {settings.compress,
                     megabytes_text(use.sent_bytes),
                     megabytes_text(use.exact_bytes),
                     format("%.2f s", use.seconds),
                     use.exact_parameters.empty()
                         ? ""
                         : concat("; ",
                                  counted(static_cast<std::int64_t>(use.exact_parameters.size()),
                                          "parameter"),
                                  " exactly (summary.json)")}));
  }
  if (const CompressionUse::Check& check = result.compression.check; check.step > 0) {
    add_line(table,
             "compressed sum",
             concat("beside the exact one of step {}: error {}, cosine {}",
                    {check.step,
                     format("%.2f %%", 100 * check.relative_error),
                     format("%.5f", check.cosine)}));
  }
  if (result.stale) {
    add_line(table, "staleness", staleness_text(*result.stale));
    add_line(table, "waited for", held_up_text(*result.stale));
  } else if (settings.sync != "exact") {
    add_line(table,
             "averaging",
             concat("{}: {} of {}, {} sent by a rank, {}",
                    {settings.sync,
                     counted(result.averaging.averagings, "averaging"),
                     counted(result.replicas, "replica"),
                     megabytes_text(result.averaging.sent_bytes),
                     format("%.2f s", result.averaging.seconds)}));
  }
  add_line(table, "time waiting for data", format("%.2f %%", 100 * result.data_share));
  if (result.save_share > 0) {
    add_line(table, "time for checkpoints", format("%.2f %%", 100 * result.save_share));
  }
  if (const MemoryUse* most = largest(result.memory)) {
    add_line(table,
             "memory of a rank",
             concat(megabytes_text(most->model_bytes()),
                    result.built_in_parts ? " for the model, built in parts" : " for the model",
                    settings.ranks > 1 && settings.zero > 0
                        ? concat("; DDP would take ", megabytes_text(result.memory.ddp_bytes))
                        : ""));
    for (int category = 0; category < kMemoryCategories; ++category) {
      const auto which = static_cast<MemoryCategory>(category);
      if (most->of(which) > 0) {
        add_line(table, concat("  ", memory_category_name(which)), megabytes_text(most->of(which)));
      }
    }
    add_line(table, "  activations, tensors", megabytes_text(result.tensor_bytes));
  }
  for (const std::int64_t rank : result.stragglers) {
    add_line(table, "slow", concat("rank ", rank));
  }
  return table;
}

std::string summary_json(const TrainSettings& settings,
                         const TrainResult& result,
                         const std::vector<std::string>& class_names) {
  Json json;
  json["status"] = status_name(result.status);
  json["stopped_early"] = result.status == TrainResult::Status::kStoppedEarly;
  json["steps"] = result.steps;
  json["seconds"] = result.seconds;
  json["training_loss"] = result.loss;
  json["metrics"] = result.evaluation.metrics;
  if (!result.evaluation.metrics.empty()) {
    json["evaluated_step"] = result.evaluated_step;
  }
  if (!result.evaluation.samples.empty()) {
    json["evaluation_fingerprint"] = digits_of(result.evaluation.fingerprint);
  }
  if (result.data_fingerprint != 0) {
    json["data_fingerprint"] = digits_of(result.data_fingerprint);
  }
  if (!result.best.empty()) {
    json["best"] = {{"step", result.best_step}, {"metrics", result.best}};
  }
  if (result.evaluation.confusion) {
    Json classes = Json::array();
    for (std::int64_t i = 0; i < result.evaluation.confusion->classes(); ++i) {
      const ClassScores scores = result.evaluation.confusion->of_class(i);
      Json of_class;
      if (static_cast<std::size_t>(i) < class_names.size()) {
        of_class["name"] = class_names[static_cast<std::size_t>(i)];
      }
      of_class["precision"] = scores.precision;
      of_class["recall"] = scores.recall;
      of_class["f1"] = scores.f1;
      of_class["support"] = scores.support;
      classes.push_back(of_class);
    }
    json["classes"] = classes;
    json["confusion"] = result.evaluation.confusion->counts();
  }
  json["throughput"] = {{"unit", result.counts_tokens ? "tokens" : "samples"},
                        {"per_second", result.per_second},
                        {"untimed_steps", result.untimed_steps}};
  Json memory;
  const MemoryUse* most = largest(result.memory);
  memory["rank_bytes"] = most != nullptr ? most->total() + result.tensor_bytes : 0;
  memory["model_bytes"] = most != nullptr ? most->model_bytes() : 0;
  memory["ddp_bytes"] = result.memory.ddp_bytes;
  memory["tensor_bytes"] = result.tensor_bytes;
  memory["built_in_parts"] = result.built_in_parts;
  for (int category = 0; most != nullptr && category < kMemoryCategories; ++category) {
    const auto which = static_cast<MemoryCategory>(category);
    memory["categories"][std::string(memory_category_name(which))] = most->of(which);
  }
  json["memory"] = memory;
  json["micro_batch"] = result.micro_batch;
  if (result.goal_step > 0) {
    json["goal"] = {{"step", result.goal_step}, {"seconds", result.goal_seconds}};
  }
  json["machine"] = {{"processor", processor_name()},
                     {"processors", machine_cpus()},
                     {"machines", result.machines}};
  if (result.sum_group > 0) {
    json["sum_group"] = result.sum_group;
  }
  json["processor_share"] = result.processor_share;
  json["communication_share"] = result.communication_share;
  if (const CompressionUse& use = result.compression; use.sent_bytes > 0 || use.check.step > 0) {
    json["compression"] = {{"sent_bytes", use.sent_bytes},
                           {"exact_bytes", use.exact_bytes},
                           {"saved_bytes", use.exact_bytes - use.sent_bytes},
                           {"seconds", use.seconds}};
    if (!use.exact_parameters.empty()) {
      json["compression"]["exact_parameters"] = use.exact_parameters;
    }
    if (use.check.step > 0) {
      json["compression"]["check"] = {{"step", use.check.step},
                                      {"relative_error", use.check.relative_error},
                                      {"cosine", use.check.cosine}};
    }
  }
  if (result.stale) {
    json["stale"] = {{"mode", settings.sync},
                     {"workers", settings.ranks - settings.servers},
                     {"servers", settings.servers},
                     {"staleness", result.stale->staleness},
                     {"held_up_seconds", result.stale->held_up}};
  } else if (settings.sync != "exact") {
    json["averaging"] = {{"mode", settings.sync},
                         {"replicas", result.replicas},
                         {"averagings", result.averaging.averagings},
                         {"sent_bytes", result.averaging.sent_bytes},
                         {"seconds", result.averaging.seconds}};
  }
  json["data_share"] = result.data_share;
  json["record_share"] = result.record_share;
  json["save_share"] = result.save_share;
  json["ranks"] = settings.ranks;
  if (const RankChanges& changes = result.rank_changes; changes.times > 0) {
    json["rank_changes"] = {{"times", changes.times},
                            {"lost", changes.lost},
                            {"left", changes.left},
                            {"joined", changes.joined},
                            {"steps_again", changes.steps_again}};
  }
  json["zero"] = settings.zero;
  // A name may be any bytes of a file; JSON has characters only.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string folds_table(const std::vector<TrainResult>& all) {
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
    const MeanEstimate mean = mean_of(values);
    if (mean.count == 1) {
      add_line(table,
               name,
               concat(metric_text(name, mean.mean), " (one fold: its uncertainty is unknown)"));
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
    total.steps += fold.steps;
    total.seconds += fold.seconds;
    const auto timed = static_cast<double>(
        fold.steps - (fold.steps > fold.untimed_steps ? fold.untimed_steps : 0));
    timed_steps += timed;
    time += fold.per_second > 0 ? timed / fold.per_second : 0;
    total.untimed_steps = fold.untimed_steps;
    total.communication_share += fold.communication_share / static_cast<double>(folds.size());
    total.counts_tokens = fold.counts_tokens;
    total.memory = fold.memory;
    total.built_in_parts = fold.built_in_parts;
    total.tensor_bytes = std::max(total.tensor_bytes, fold.tensor_bytes);
    total.loss = fold.loss;
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
    total.evaluation.metrics[name] = mean_of(values).mean;
  }
  json = Json::parse(summary_json(settings, total));
  json["folds"] = each;
  return json.dump(2) + "\n";
}

}  // namespace trireme
