#include "train/trained_settings.h"

#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "trireme/settings/settings_table.h"

namespace trireme::detail {

TrainSettings settings_as_trained(const std::string& trained, const TrainSettings& asked) {
  static const std::set<std::string> kStillInEffect = {
      "model",         "run",          "data",         "eval_data",     "format",
      "eval_fraction", "eval_batch",   "eval_every",   "goal",          "started_in",
      "timeout",       "save_every",   "keep_last",    "keep_every",    "snapshot_limit",
      "allow_changes", "log_every",    "tensorboard",  "replay",        "histogram_every",
      "save_weights",  "memory_limit", "save_initial", "record_samples"};
  const nlohmann::json json = nlohmann::json::parse(in_todays_words(trained));
  TrainSettings settings = asked;
  for (const Setting& setting : settings_table()) {
    if (!kStillInEffect.contains(setting.name) && json.contains(setting.name)) {
      setting.set_json(settings, json[setting.name].dump());
    }
  }
  return settings;
}

}  // namespace trireme::detail
