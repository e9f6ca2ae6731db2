#include "trireme/settings/differences.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/random.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

// Settings that change no bit of the result.
std::set<std::string> free_settings(bool local_first, bool by_ranks, bool stale) {
  std::set<std::string> names = {
      "recompute",      "data_threads",
      "memory_limit",   "zero",
      "placement",      "offload",
      "unit_bytes",     "bucket_bytes",
      "timeout",        "straggler_factor",
      "save_every",     "keep_last",
      "keep_every",     "run",
      "snapshot_limit", "allow_changes",
      "log_every",      "histogram_every",
      "tensorboard",    "save_weights",
      "save_initial",   "record_samples",
      "goal",           "compress_check",
      "replay",         "started_in",
  };
  if (stale) {
    names.erase("save_every");  // after a save, all ranks go on from the newest weights
  }
  if (!local_first) {
    names.insert({"balance", "speeds"});
  }
  if (!local_first && !by_ranks) {
    names.insert("ranks");
  }
  return names;
}

bool is_stale(const Json& sync) {
  return sync == "stale" || sync == "async";
}

// How many there are; 0: not known here, where each is a machine.
std::int64_t replicas_of(std::int64_t ranks, const std::string& group) {
  TrainSettings settings;
  settings.sync_group = group;
  const int each = ranks_of_replica(settings);
  return each > 0 && ranks % each == 0 ? ranks / each : 0;
}

}  // namespace

std::vector<SettingDifference> differences_of_result(const std::string& saved,
                                                     const TrainSettings& given) {
  const Json json =
      json_too_deep_at(saved) ? Json() : Json::parse(saved, nullptr, /*allow_exceptions=*/false);
  TRIREME_CHECK(json.is_object(), "expected settings as one JSON object, found ", saved);
  const Json then = Json::parse(in_todays_words(saved));
  const Json today = Json::parse(in_todays_words(to_json(given)));
  const bool local_first =
      given.sum_order == SumOrder::kLocalFirst || json.value("sum_order", Json()) == "local_first";
  const bool scaled =
      given.lr_scaling != WorldScaling::kNone || json.value("lr_scaling", Json("none")) != "none";
  const bool loose =
      given.sync != Synchronisation::kExact || json.value("sync", Json("exact")) != "exact";
  const bool stale = trains_stale(given) || is_stale(json.value("sync", Json()));
  // Of replicas, their number is part of the result, and their size is not.
  const std::int64_t before_replicas =
      loose ? replicas_of(json.value("ranks", std::int64_t{0}), json.value("sync_group", "rank"))
            : 0;
  const std::int64_t replicas = loose ? replicas_of(given.ranks, given.sync_group) : 0;
  const bool as_many = !stale && replicas > 0 && replicas == before_replicas;
  std::set<std::string> free = free_settings(local_first, scaled || (loose && !as_many), stale);
  if (as_many) {
    free.insert("sync_group");
  }
  std::vector<SettingDifference> differences;
  for (const Setting& setting : settings_table()) {
    const auto recorded = [&](const Json& in) {
      return in.contains(setting.name)     ? in[setting.name].dump()
             : setting.absent_text.empty() ? setting.default_text
                                           : setting.absent_text;
    };
    if (setting.name == "compress" && given.compress == "auto") {
      continue;  // a run keeps what that came to when it began
    }
    if (recorded(json) == setting.to_json(given)) {
      continue;  // also where both leave it to something that differs, which is named
    }
    const std::string before = recorded(then);
    const std::string now = today[setting.name].dump();
    if (before != now && free.count(setting.name) == 0) {
      const bool by_replicas =
          setting.name == "ranks" && !stale && !as_many && replicas > 0 && before_replicas > 0;
      differences.push_back(
          {setting.name,
           before,
           now,
           by_replicas ? detail::concat(" ({} and {} replicas, whose number is part of --sync {}; "
                                        "--sync-group changes their size)",
                                        {before_replicas, replicas, value_text("sync", given)})
                       : ""});
    }
  }
  return differences;
}

std::string to_string(const std::vector<SettingDifference>& differences,
                      const std::string& saved_in) {
  std::string text;
  for (const SettingDifference& each : differences) {
    text += (text.empty() ? "" : "\n") + ("  " + each.name) + ": " + each.saved + " in " +
            saved_in + ", " + each.given + " now" + each.note;
  }
  return text;
}

std::vector<SettingDifference> check_same_result(const std::string& saved,
                                                 const TrainSettings& given,
                                                 std::int64_t step) {
  std::vector<SettingDifference> differences = differences_of_result(saved, given);
  TRIREME_CHECK(differences.empty() || given.allow_changes,
                "the checkpoint of step {} was saved with different settings, which change the "
                "result:\n{}\nUse the same values, another folder for the run (--run), or "
                "--allow-changes to resume with the new ones",
                {step, to_string(differences)});
  return differences;
}

std::string recorded_subject(const TrainSettings& settings) {
  std::set<std::string> free = free_settings(false, false, /*stale=*/true);
  free.insert("save_every");  // what a save does is recorded
  if (settings.schedule != ScheduleKind::kPlateau) {
    free.insert({"eval_every", "early_stop"});
  }
  if (settings.schedule == ScheduleKind::kConstant) {
    free.insert({"steps", "epochs"});
  }
  std::uint64_t state = 0;
  for (const Setting& setting : settings_table()) {
    const std::string value = setting.to_json(settings);
    if (free.count(setting.name) > 0 || value == setting.default_text) {
      continue;
    }
    for (const char letter : setting.name + "=" + value + ";") {
      state = mix(state, static_cast<unsigned char>(letter));
    }
  }
  return detail::concat("settings ", state);
}

void check_same_replay(const TrainSettings& given) {
  std::error_code error;
  TRIREME_CHECK(is_run_folder(given.replay), "replay: ", expected_run_folder(given.replay));
  TRIREME_CHECK(!std::filesystem::equivalent(given.replay, given.run, error),
                "replay: \"{}\" is the run itself, whose record goes on with it: leave it out, or "
                "choose another folder for this run (--run)",
                {given.replay});
  TRIREME_CHECK(
      std::filesystem::is_directory(given.replay + kArrivalsFolder, error),
      "replay: \"{}\" has recorded no arrivals: expected a run with --sync async, or with "
      "--sync stale --order arrival",
      {given.replay});
  std::ifstream file(given.replay + "/config.json");
  const std::string saved{std::istreambuf_iterator<char>(file), {}};
  const std::vector<SettingDifference> differences = differences_of_result(saved, given);
  TRIREME_CHECK(
      differences.empty(),
      "replay: the run in \"{}\" has other settings, which change the result:\n{}\nUse the "
      "same values",
      {given.replay, to_string(differences, "the run")});
}

void check_same_folds(const std::string& saved,
                      const TrainSettings& given,
                      const std::string& run) {
  const std::vector<SettingDifference> differences = differences_of_result(saved, given);
  TRIREME_CHECK(differences.empty(),
                "the folds of \"{}\" are trained with other settings, which change the "
                "result:\n{}\nUse the same values, or another folder for the run (--run)",
                {run, to_string(differences, "the run")});
}

}  // namespace trireme
