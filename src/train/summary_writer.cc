// summary.json, which summary_reader.cc reads.

#include <cstdio>

#include <nlohmann/json.hpp>

#include "train/report_lines.h"
#include "trireme/core/machine.h"
#include "trireme/core/proc_files.h"
#include "trireme/settings/settings_table.h"
#include "trireme/train/training_report.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using detail::largest;

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

std::string digits_of(std::uint64_t fingerprint) {
  char digits[24];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(fingerprint));
  return digits;
}

}  // namespace

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
    if (result.evaluation.confusion->lacks_predictions()) {
      json["unpredicted"] = result.evaluation.confusion->unpredicted();  // by class
    }
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
                                      {"cosine", use.check.cosine},
                                      {"descent", use.check.descent}};
    }
  }
  if (const CompressionUse::Weights& use = result.compression.weights; use.received_bytes > 0) {
    json["rounded_weights"] = {{"received_bytes", use.received_bytes},
                               {"exact_bytes", use.exact_bytes}};
  }
  if (const OffloadUse& use = result.offload; use.sent_bytes > 0) {
    json["offload"] = {{"fetched_bytes", use.fetched_bytes},
                       {"sent_bytes", use.sent_bytes},
                       {"wait_seconds", use.wait_seconds},
                       {"past_cache", use.past_cache},
                       {"in_memory", use.in_memory}};
  }
  if (result.pruned > 0) {
    json["pruned"] = result.pruned;
  }
  if (result.stale) {
    json["stale"] = {{"mode", value_text("sync", settings)},
                     {"workers", settings.ranks - settings.servers},
                     {"servers", settings.servers},
                     {"staleness", result.stale->staleness},
                     {"held_up_seconds", result.stale->held_up}};
  } else if (settings.sync != Synchronisation::kExact) {
    json["averaging"] = {{"mode", value_text("sync", settings)},
                         {"replicas", result.replicas},
                         {"averagings", result.averaging.averagings},
                         {"sent_bytes", result.averaging.sent_bytes},
                         {"seconds", result.averaging.seconds}};
    if (!result.phases.empty()) {
      json["averaging"]["phases"] = result.phases;
      json["averaging"]["changes"] = result.phase_changes;
    }
  }
  json["data_share"] = result.data_share;
  json["record_share"] = result.record_share;
  json["save_share"] = result.save_share;
  const std::vector<StepsOnRanks>& parts = result.steps_by_ranks;
  json["ranks"] = parts.empty() ? settings.ranks : parts.back().ranks;
  if (parts.size() > 1) {
    for (const StepsOnRanks& part : parts) {
      json["steps_by_ranks"].push_back(
          {{"from", part.from}, {"to", part.to}, {"ranks", part.ranks}});
    }
  }
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

}  // namespace trireme
