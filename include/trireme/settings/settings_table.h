#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/settings/train_settings.h"

namespace trireme {

// One setting of a training job: its names, its meaning, and how it is read and written.
struct Setting {
  std::string name;  // in JSON; the flag is "--" and the name with '-' for '_'
  std::string group;
  std::string kind;     // "integer", "number", "text", "on/off", "list of ...", "a|b|c"
  std::string meaning;  // one sentence, or a few
  std::string default_text;
  // What a run did that was recorded before there was this setting, as JSON; empty: what the
  // default says. Such a run is resumed with it and compared by it, whatever the default is by now.
  std::string absent_text;
  // What runs of version 0.1.0 have recorded where it says "auto" now.
  std::optional<double> automatic_number;
  std::vector<std::string> deepspeed;  // the names it has in DeepSpeed's configuration

  // Both throw ConfigError with what was expected and what was found.
  std::function<void(TrainSettings&, const std::string& text)> set_text;
  std::function<void(TrainSettings&, const std::string& json)> set_json;
  std::function<std::string(const TrainSettings&)> to_json;

  std::string flag() const;
};

// All of them, in the order of the documentation.
const std::vector<Setting>& settings_table();
// Null where no setting has this name.
const Setting* find_setting(const std::string& name);
// The value of a setting for messages: "cosine".
std::string value_text(const std::string& name, const TrainSettings& settings);

// Reads a configuration: one JSON object whose names are those of the table, or DeepSpeed's where
// both have a setting (train_batch_size, optimizer.params.lr, zero_optimization.stage, ...). Throws
// ConfigError for text that is no JSON (with the place), for unknown names (with the nearest known
// one), for a name that is there twice and for two names of one setting, and for what DeepSpeed has
// and Trireme has not. What a configuration with DeepSpeed's names of the batch or the optimizer
// leaves out is as DeepSpeed has it, but for the settings in `flags`, which the caller sets after
// it. `source` is for messages.
void apply_json(TrainSettings& settings,
                const std::string& text,
                const std::string& source,
                const std::set<std::string>& flags = {});

// The settings that a run has recorded: config.json, or a checkpoint's note. What an older version
// did not write is as that version did it (Setting::absent_text). Throws ConfigError like
// apply_json.
TrainSettings recorded_settings(const std::string& text, const std::string& source);

// Such settings, one JSON object, as this version would have recorded them. Version 0.1.0 wrote 0
// for what it chose itself: the learning rate of the model, and what follows from its size.
std::string in_todays_words(const std::string& json);

// The inverse: one flat object, names as in the table.
std::string to_json(const TrainSettings& settings);

// A message about settings ("batch: expected ...", "micro_batch, accumulate: ...") for somebody at
// a command line: names the flag of each that was given by its flag, and the flag beside the name
// of each other one. The engine's options ("EngineOptions::zero") are named in the same way. Any
// other message is returned as it is.
std::string with_flags(const std::string& said, const std::set<std::string>& given_by_flag);

// The variable by which `trireme train` hands its settings to rank 0, which tells the others: the
// path of a file with JSON.
inline constexpr const char* kEnvTrainSettings = "TRIREME_TRAIN_SETTINGS";

// The table as a page of documentation (Markdown), and as lines for --help.
std::string settings_page();
std::string settings_help();

// The candidate that looks most like `name` (few letters changed, left out or swapped); empty where
// none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace trireme
