#include "train_resume.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint_place.h"
#include "command_words.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/shell_text.h"
#include "trireme/observe/line_file.h"
#include "trireme/settings/differences.h"
#include "trireme/settings/run_folder.h"
#include "trireme/settings/settings_table.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::shell_text;

constexpr const char* kNever = "never";
constexpr const char* kSettingsNote = "settings";  // of checkpoints that a run has saved

std::string checkpoints_in(const std::string& run) {
  return run + "/checkpoints";
}

// The run has come to an end of its own: by its last step, or because it was asked to. One that a
// failure has ended has a summary too, which says so.
bool has_ended_well(const fs::path& run) {
  std::ifstream file(run / "summary.json", std::ios::binary);
  if (!file.is_open()) {
    return false;
  }
  const auto summary = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return !summary.is_object() || summary.value("status", "") != "failed";
}

bool has_checkpoint(const std::string& run) {
  const CheckpointFolder folder(checkpoints_in(run));
  std::error_code error;
  return fs::is_directory(folder.path(), error) && folder.newest();
}

bool is_damaged(const std::string& run, std::int64_t step) {
  try {
    return !verify_checkpoint(CheckpointFolder(checkpoints_in(run)).path_of(step)).empty();
  } catch (const Error&) {
    return true;
  }
}

// The newest before it that is whole, or else the first after it.
std::optional<std::int64_t> whole_one_beside(const std::string& run, std::int64_t damaged) {
  std::vector<std::int64_t> steps = CheckpointFolder(checkpoints_in(run)).steps();
  std::sort(steps.begin(), steps.end());
  const auto middle = std::lower_bound(steps.begin(), steps.end(), damaged);
  std::reverse(steps.begin(), middle);
  for (const std::int64_t step : steps) {
    if (step != damaged && !is_damaged(run, step)) {
      return step;
    }
  }
  return std::nullopt;
}

// With what a run has left that cannot be resumed.
std::string how_to_begin_with(const std::string& run) {
  std::error_code error;
  return fs::exists(fs::path(run) / "model.safetensors", error)
             ? concat(
                   "to start a new run with its settings and weights: trireme train --config "
                   "{} --weights-from {} --run NEW",
                   {shell_text({run + "/config.json"}), shell_text({run})})
             : concat("to start a new run with its settings: trireme train --config {} --run NEW",
                      {shell_text({run + "/config.json"})});
}

// What can be done then: the command at hand, which may have flags that the run has no record of.
std::string how_to_do_without(const std::string& run, std::int64_t damaged) {
  const auto again = [](const std::set<std::string>& without,
                        const std::vector<std::string>& with) {
    std::vector<std::string> words = without_flags(command_words(), without);
    words.front() = "trireme";
    words.insert(words.end(), with.begin(), with.end());
    return shell_text(words);
  };
  const std::optional<std::int64_t> other = whole_one_beside(run, damaged);
  return other ? concat("to resume it from the checkpoint {}: {}",
                        {*other < damaged ? "before" : "after",
                         again({"--run", "--resume"},
                               {"--run", run, "--resume", std::to_string(*other)})})
               : concat("to train it again: ",
                        again({"--run", "--resume", "--config", "--allow-changes"},
                              {"--config", run + "/config.json", "--run", "NEW"}));
}

std::string text_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether a cross-validation has come to train. One that was refused in its first fold has left its
// folder at most.
bool folds_have_begun(const fs::path& run) {
  const fs::path first = run / "fold-1";
  std::error_code error;
  return fs::exists(first / "metrics.jsonl", error) || fs::exists(first / "config.json", error) ||
         fs::exists(first / "summary.json", error) ||
         (fs::is_directory(first / "checkpoints", error) &&
          !CheckpointFolder(checkpoints_in(first.string())).steps().empty());
}

// Of one that was refused; what anybody else has put there stays.
void forget_folder_of_first_fold(const fs::path& run) {
  const fs::path first = run / "fold-1";
  std::error_code error;
  for (const char* name : {"checkpoints/.lock", "checkpoints"}) {
    fs::remove(first / name, error);
  }
  fs::remove(first, error);
}

// The settings of a cross-validation whose first fold has begun; empty: the run is none. One that
// was killed before its first fold had anything to show is resumed where that is asked for.
std::string settings_of_folds(const fs::path& run, bool asked_for) {
  const fs::path first = run / "fold-1";
  std::error_code error;
  if (!folds_have_begun(run) && !(asked_for && fs::is_directory(first, error))) {
    return "";
  }
  const std::string text = text_in(run / "config.json");
  return text.empty() ? text_in(first / "config.json") : text;
}

}  // namespace

std::optional<std::string> ResumeFlag::run() const {
  const bool folder = !value.empty() && value != kNever && !parse_integer(value);
  return folder ? std::optional(value) : std::nullopt;
}

bool ResumeFlag::names_step() const {
  return parse_integer(value).has_value();
}

std::optional<std::int64_t> step_to_resume(const std::string& run, const ResumeFlag& flag) {
  if (flag.value == kNever || (run.empty() && !flag.given)) {
    return std::nullopt;
  }
  TRIREME_CHECK(!run.empty(),
                "--resume: expected the folder of a run, here or with --run, found none");
  const auto asked = parse_integer(flag.value);
  // A cross-validation resumes without being told, as others do from a checkpoint; one that has
  // come to its end has nothing left to do.
  if (!settings_of_folds(run, flag.given).empty()) {
    TRIREME_CHECK(
        !asked,
        "--resume: expected no step: \"{}\" is a cross-validation, which resumes with the "
        "first fold that is not finished; found {}",
        {run, asked.value_or(0)});
    return kNextFold;
  }
  const CheckpointFolder folder(checkpoints_in(run));
  std::error_code error;
  const auto newest = fs::is_directory(folder.path(), error) ? folder.newest() : std::nullopt;
  TRIREME_CHECK(!flag.given || is_run_folder(run) || fs::is_directory(folder.path(), error),
                "--resume: \"{}\": {}",
                {run, expected_run_folder(run)});
  if (!newest && flag.given) {
    FolderLock::check_free(run);  // else that of a run which has saved none yet
  }
  TRIREME_CHECK(newest || !flag.given,
                "--resume: expected a checkpoint in \"{}\", found none: {}{}",
                {folder.path(),
                 why_no_checkpoint(run),
                 is_run_folder(run) ? "; " + how_to_begin_with(run) : ""});
  if (!asked) {
    return newest;
  }
  TRIREME_CHECK(folder.contains(*asked),
                "--resume: expected a step for which \"{}\" has a checkpoint ({}), found {}",
                {folder.path(), detail::listed(folder.steps()), *asked});
  return asked;
}

TrainSettings settings_of_run(const std::string& run, std::int64_t step, bool step_was_named) {
  std::string path = run + "/config.json";
  const std::string of_folds = step == kNextFold ? settings_of_folds(run, true) : "";
  std::string text = of_folds.empty() ? text_in(path) : of_folds;
  // Lost with the machine that wrote it, or that of a later part of the run, which whoever names a
  // step does not want: the checkpoint has what it was saved with.
  if (text.empty() || step_was_named) {
    const std::string checkpoint = CheckpointFolder(checkpoints_in(run)).path_of(step);
    try {
      const Notes notes = Manifest::read(checkpoint).notes;
      const auto saved = notes.find(kSettingsNote);
      TRIREME_CHECK(saved != notes.end() || !text.empty(),
                    "\"{}/config.json\" could not be read, and \"{}\" was not saved by a run: its "
                    "settings are needed to resume it",
                    {run, checkpoint});
      if (saved != notes.end()) {
        text = saved->second;
        path = checkpoint;
      }
    } catch (const CheckpointError&) {
      if (text.empty()) {
        throw;
      }  // else the ranks say what is wrong, and what can be done
    }
  }
  TrainSettings settings = recorded_settings(text, path);
  settings.run = run;
  settings.allow_changes = false;  // that was for another start
  return settings;
}

void check_settings(const std::string& run, std::int64_t step, const TrainSettings& given) {
  if (const std::string of_folds = step == kNextFold ? settings_of_folds(run, true) : "";
      !of_folds.empty()) {
    check_same_folds(of_folds, given, run);
    return;
  }
  Notes notes;
  try {
    notes = Manifest::read(CheckpointFolder(checkpoints_in(run)).path_of(step)).notes;
  } catch (const CheckpointError&) {
    return;  // the ranks say what is wrong, and what can be done
  }
  if (const auto saved = notes.find(kSettingsNote); saved != notes.end()) {
    check_same_result(saved->second, given, step);
  }
}

bool ended_before_a_checkpoint(const TrainSettings& settings, bool several_machines) {
  const fs::path run = settings.run;
  std::error_code error;
  const auto has = [&](const char* name) { return fs::exists(run / name, error); };
  if (!has("metrics.jsonl") || has_ended_well(run) || folds_have_begun(run) ||
      !CheckpointFolder(checkpoints_in(settings.run)).steps().empty()) {
    return false;
  }
  if (fs::file_size(run / "metrics.jsonl", error) == 0) {
    return true;  // not one step was taken, so that there is nothing to lose
  }
  if (settings.save_every == 0) {
    return false;
  }
  try {
    const TrainSettings saved =
        recorded_settings(text_in(run / "config.json"), (run / "config.json").string());
    TrainSettings now = settings;
    now.ranks = saved.ranks;
    now.compress = now.compress == "auto" ? saved.compress : now.compress;  // that it came to
    if (several_machines) {
      now = resolve(now);
    }
    return differences_of_result(to_json(saved), now).empty();
  } catch (const ConfigError&) {
    return false;  // it was another command: its settings cannot be read, or do not fit these ranks
  }
}

std::string how_to_resume(const std::string& run, std::optional<std::int64_t> resumed) {
  std::error_code error;
  if (!settings_of_folds(run, false).empty()) {
    return concat("to resume it with the first fold that is not finished: trireme train --resume ",
                  shell_text({run}));
  }
  if (has_checkpoint(run)) {
    return resumed && is_damaged(run, *resumed)
               ? how_to_do_without(run, *resumed)
               : concat("to resume it: trireme train --resume ", shell_text({run}));
  }
  if (fs::exists(fs::path(run) / "model.safetensors", error)) {
    return concat("it saved no checkpoint (--save-every N does); ", how_to_begin_with(run));
  }
  return "";
}

std::string how_to_complete(const std::string& run) {
  if (!settings_of_folds(run, false).empty() || has_checkpoint(run)) {
    return concat("to complete it: trireme train --resume ", shell_text({run}));
  }
  if (const std::string why = why_no_checkpoint_yet(run); !why.empty() && !has_ended_well(run)) {
    return why;
  }
  return concat(
      "it saved no checkpoint to resume from (--save-every N does); to train it again: trireme "
      "train --config {} --run NEW",
      {shell_text({run + "/config.json"})});
}

std::string dated_folder(const std::string& model) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%d_%H-%M-%S", &parts);
  std::string folder = concat("runs/", date, "_", model);
  for (int number = 2; fs::exists(folder); ++number) {
    folder = concat("runs/", date, "_", model, "_", number);
  }
  return folder;
}

std::vector<std::string> make_run_folder(const std::string& run) {
  std::error_code error;
  const auto refuse_where = [&](bool holds, const std::string& what) {
    if (holds) {
      const std::string advice = how_to_resume(run);
      throw ConfigError(
          concat("--run: \"{}\" already holds a run ({}): choose another folder, or remove it{}{}",
                 {run, what, advice.empty() ? "" : "; ", advice}));
    }
  };
  // What every run leaves that got as far as its first step; one that did not can be repeated.
  for (const char* name : {"metrics.jsonl", "summary.json"}) {
    refuse_where(fs::exists(fs::path(run) / name, error), name);
  }
  refuse_where(folds_have_begun(run), "fold-1");
  refuse_where(fs::is_directory(checkpoints_in(run), error) &&
                   !CheckpointFolder(checkpoints_in(run)).steps().empty(),
               "checkpoints");
  TRIREME_CHECK(!fs::exists(run, error) || fs::is_directory(run, error),
                "--run: expected a folder for the run, or a name that is free, found a file at \"",
                run,
                "\": choose another name");
  forget_folder_of_first_fold(run);
  std::vector<std::string> made;
  for (fs::path part = run; !part.empty() && !fs::exists(part, error); part = part.parent_path()) {
    made.push_back(part.string());
  }
  fs::create_directories(run, error);
  if (error) {
    std::error_code ignored;
    std::for_each(made.begin(), made.end(), [&](const auto& each) { fs::remove(each, ignored); });
  }
  if (error == std::errc::no_space_on_device) {
    throw Error(
        concat("the folder \"", run, "\" of the run could not be created: ", error.message()));
  }
  TRIREME_CHECK(!error && fs::is_directory(run, error),
                "--run: the folder \"{}\" could not be created: {}",
                {run, error ? error.message() : "there is something else with this name"});
  return made;
}

void take_back_run_folder(const std::string& run, const std::vector<std::string>& made) {
  const fs::path folder = run;
  std::error_code error;
  if (fs::exists(folder / "metrics.jsonl", error) || folds_have_begun(folder)) {
    return;
  }
  std::vector<fs::path> left;
  for (fs::directory_iterator it(folder / "logs", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".log")) {
      left.push_back(it->path());
    }
  }
  for (const char* name :
       {"logs", "arrivals", "checkpoints/.lock", "checkpoints", ".lock", "config.json"}) {
    left.push_back(folder / name);
  }
  left.insert(left.end(), made.begin(), made.end());
  forget_folder_of_first_fold(folder);
  for (const fs::path& each : left) {
    fs::remove(each, error);  // folders only if nothing else is in them
  }
}

std::vector<std::string> begin_run_folder(const TrainSettings& settings) {
  const std::vector<std::string> made = make_run_folder(settings.run);
  try {
    write_whole_file(settings.run + "/config.json", to_json(settings) + "\n");
  } catch (const Error&) {
    if (!made.empty()) {
      take_back_run_folder(settings.run, made);
    }
    throw;
  }
  return made;
}

}  // namespace trireme::tools
