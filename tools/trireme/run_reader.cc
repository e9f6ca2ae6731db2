#include "run_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "train_resume.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/printable.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/unused.h"

namespace trireme::tools {
namespace {

using Json = nlohmann::json;

constexpr const char* kRunFolder =
    "expected the folder of a run, with the config.json and summary.json that trireme train writes";

std::string shown(const std::string& text) {
  constexpr std::size_t kLongest = 63;
  return detail::printable(text, kLongest);
}

// Discarded: it is no JSON, or deeper than any file of a run.
Json parsed(const std::string& text) {
  return json_too_deep_at(text) ? Json(Json::value_t::discarded)
                                : Json::parse(text, nullptr, false);
}

void check_folder(const std::string& folder) {
  std::error_code ignored;
  TRIREME_CHECK(
      std::filesystem::is_directory(folder, ignored), folder, ": ", expected_run_folder(folder));
}

Json read_object(const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  std::ifstream file(path);
  TRIREME_CHECK(file.good(), folder, ": ", kRunFolder, ", found no ", name);
  Json content = parsed({std::istreambuf_iterator<char>(file), {}});
  TRIREME_CHECK(content.is_object(),
                path,
                ": expected one JSON object, found ",
                content.is_discarded() ? "text that is not JSON, or is nested too deeply"
                                       : content.type_name());
  return content;
}

// A number; null stands for one that was not finite. Nothing for anything else.
std::optional<double> number_in(const Json& value) {
  if (value.is_null()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::map<std::string, double> numbers_in(const Json& object, const std::string& where) {
  TRIREME_CHECK(
      object.is_object(), where, ": expected an object of numbers, found ", object.type_name());
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : object.items()) {
    const auto number = number_in(value);
    TRIREME_CHECK(
        number, where, ": expected a number for \"", name, "\", found ", shown(value.dump()));
    numbers[name] = *number;
  }
  return numbers;
}

std::optional<double> optional_number(const Json& summary, const Json::json_pointer& at) {
  return summary.contains(at) && summary[at].is_number() ? std::optional(summary[at].get<double>())
                                                         : std::nullopt;
}

// Of summary.json: {"processor": "Intel(R) Xeon(R)", "processors": 2, "machines": 1}.
std::string machine_in(const Json& summary) {
  const Json machine = summary.value("machine", Json());
  const auto at = [&](const char* name) { return machine.value(name, Json()); };
  if (!machine.is_object() || !at("processor").is_string() || !at("processors").is_number()) {
    return "";
  }
  const double machines = at("machines").is_number() ? at("machines").get<double>() : 1;
  return detail::concat(machines == 1 ? "" : detail::concat(machines, " machines of "),
                        at("processors").get<double>(),
                        " x ",
                        shown(at("processor").get<std::string>()));
}

// Of summary.json: [{"from": 1, "to": 40, "ranks": 2}, ...]. Empty where they never changed.
std::string steps_by_ranks_in(const Json& summary) {
  const Json parts = summary.value("steps_by_ranks", Json::array());
  std::string text;
  for (const Json& part : parts.is_array() ? parts : Json::array()) {
    const auto at = [&](const char* name) {
      return optional_number(part, Json::json_pointer(detail::concat("/", name))).value_or(0);
    };
    text += detail::concat(
        "{}{} in {}",
        {text.empty() ? "" : ", ",
         at("ranks"),
         at("from") == at("to") ? detail::concat("step ", at("from"))
                                : detail::concat("steps ", at("from"), " to ", at("to"))});
  }
  return text;
}

void add_point(Series& series, double step, double value) {
  while (!series.steps.empty() && series.steps.back() >= step) {
    series.steps.pop_back();
    series.values.pop_back();
  }
  series.steps.push_back(step);
  series.values.push_back(value);
}

void add_numbers(std::map<std::string, Series>& all,
                 const Json& object,
                 double step,
                 const std::string& where) {
  for (const auto& [name, value] : object.items()) {
    if (name == "step") {
      continue;
    }
    // "skipped" is true where it is there at all.
    const auto number =
        value.is_boolean() ? std::optional(value.get<bool>() ? 1.0 : 0.0) : number_in(value);
    TRIREME_CHECK(number,
                  "{}: expected a number or null for \"{}\", found {}",
                  {where, name, shown(value.dump())});
    add_point(all[name], step, *number);
  }
}

}  // namespace

bool has_log(const std::string& folder) {
  return std::filesystem::exists(folder + "/metrics.jsonl");
}

RunLog read_log(const std::string& folder) {
  check_folder(folder);
  const std::string path = folder + "/metrics.jsonl";
  std::ifstream file(path);
  TRIREME_CHECK(file.good() || is_run_folder(folder), folder, ": ", expected_run_folder(folder));
  TRIREME_CHECK(
      file.good(),
      folder,
      ": expected a run with metrics.jsonl, which trireme train writes from the first step "
      "on, found none: the run has not begun to train");
  RunLog log;
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    const bool complete = !file.eof();  // it ended with a newline, not with the file
    if (line.empty()) {
      continue;
    }
    const std::string where = detail::concat(path, ":", number);
    const Json entry = parsed(line);
    if (entry.is_discarded() && !complete) {
      break;
    }
    TRIREME_CHECK(entry.is_object() && entry.contains("step") && entry["step"].is_number(),
                  "{}: expected a JSON object with a \"step\", found {}",
                  {where, shown(line)});
    const auto step = entry["step"].get<double>();
    if (entry.contains("eval")) {
      TRIREME_CHECK(entry["eval"].is_object(),
                    "{}: expected an object of numbers for \"eval\", found {}",
                    {where, shown(entry["eval"].dump())});
      add_numbers(log.evaluation, entry["eval"], step, where);
    } else {
      add_numbers(log.training, entry, step, where);
    }
  }
  std::ifstream summary(folder + "/summary.json");
  const Json ended = parsed({std::istreambuf_iterator<char>(summary), {}});
  const Json::json_pointer untimed("/throughput/untimed_steps");
  if (ended.is_object() && ended.contains(untimed) && ended[untimed].is_number_unsigned()) {
    log.untimed_steps = ended[untimed].get<std::int64_t>();
  }
  return log;
}

namespace {

// What has no effect on this run is no difference from another. What another version has written
// may be nothing that is known here: then all stays.
void leave_out_unused(std::map<std::string, std::string>& settings, const std::string& recorded) {
  TrainSettings known;
  try {
    known = recorded_settings(recorded, "config.json");
  } catch (const ConfigError&) {
    return;
  }
  std::erase_if(settings, [&](const auto& each) {
    return each.first == "started_in" || each.first == "allow_changes" ||
           !why_unused(each.first, known).empty();
  });
}

}  // namespace

Run read_run(const std::string& folder) {
  TRIREME_CHECK(is_run_folder(folder), folder, ": ", expected_run_folder(folder));
  Run run;
  run.folder = folder;
  Json config = Json::parse(in_todays_words(read_object(folder, "config.json").dump()));
  for (const Setting& setting : settings_table()) {  // that older versions did not record
    if (!setting.absent_text.empty() && !config.contains(setting.name)) {
      config[setting.name] = Json::parse(setting.absent_text);
    }
  }
  for (const auto& [name, value] : config.items()) {
    run.settings[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  leave_out_unused(run.settings, config.dump());
  const std::string where = folder + "/summary.json";
  std::error_code ignored;
  TRIREME_CHECK(std::filesystem::exists(where, ignored),
                "{}: expected a run that has ended, found no summary.json, which is written at its "
                "end: it is still running, or was killed; {}",
                {folder, how_to_complete(folder)});
  const Json summary = read_object(folder, "summary.json");
  if (summary.value("status", Json()) == "failed") {
    const Json reason = summary.value("reason", Json());
    throw ConfigError(detail::concat(
        "{}: expected a run that has ended, found one that failed ({}); {}",
        {folder,
         reason.is_string() ? shown(reason.get<std::string>()) : "for a reason it does not say",
         how_to_complete(folder)}));
  }
  try {
    run.status = summary.at("status").get<std::string>();
    run.steps = summary.at("steps").get<std::int64_t>();
    run.metrics = numbers_in(summary.value("metrics", Json::object()), where + ": metrics");
    for (const Json& fold : summary.value("folds", Json::array())) {
      run.folds.push_back(numbers_in(fold, where + ": folds"));
    }
  } catch (const Json::exception& error) {
    throw ConfigError(
        detail::concat(where,
                       ": expected the summary of a run (status, steps, metrics), found: ",
                       without_json_name(error.what())));
  }
  const auto folds = run.settings.find("folds");
  run.planned_folds = std::max<std::int64_t>(
      folds == run.settings.end() ? 0 : std::strtoll(folds->second.c_str(), nullptr, 10),
      std::ssize(run.folds));
  run.machine = machine_in(summary);
  run.rank_bytes = optional_number(summary, Json::json_pointer("/memory/rank_bytes"));
  run.communication_share = optional_number(summary, Json::json_pointer("/communication_share"));
  run.exchange = exchange_costs_in(summary);
  const auto changed = [&](const char* name) {
    const Json::json_pointer at(detail::concat("/rank_changes/", name));
    return static_cast<std::int64_t>(optional_number(summary, at).value_or(0));
  };
  run.rank_changes = {changed("times"), changed("lost"), changed("left"), changed("joined")};
  run.steps_by_ranks = steps_by_ranks_in(summary);
  if (!run.steps_by_ranks.empty()) {
    run.settings["ranks"] = run.steps_by_ranks;  // config.json has those of the last steps
  }
  return run;
}

std::vector<std::size_t> Run::finished_folds() const {
  std::vector<std::size_t> finished;
  for (std::size_t fold = 0; fold < folds.size(); ++fold) {
    if (!folds[fold].empty()) {
      finished.push_back(fold);
    }
  }
  return finished;
}

std::vector<std::string> log_folders(const std::string& folder) {
  check_folder(folder);
  if (has_log(folder)) {
    return {folder};
  }
  std::vector<std::string> folds;
  for (int fold = 1;; ++fold) {
    const std::string path = detail::concat(folder, "/fold-", fold);
    if (!has_log(path)) {
      break;
    }
    folds.push_back(path);
  }
  return folds.empty() ? std::vector{folder} : folds;
}

}  // namespace trireme::tools
