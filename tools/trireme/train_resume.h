#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/settings/train_settings.h"

// Where `trireme train` begins: in a new folder, or after a checkpoint of one that is there.

namespace trireme::tools {

// --resume [RUN|STEP|never], as it was given.
struct ResumeFlag {
  bool given = false;
  std::string value;

  // The folder, where it names one.
  std::optional<std::string> run() const;
  bool names_step() const;
};

// Stands for the step of a cross-validation, which resumes with the first fold that is not
// finished.
inline constexpr std::int64_t kNextFold = 0;

// The step of the checkpoint in RUN/checkpoints to resume from, or kNextFold; nothing: there is
// none, and none is asked for. Throws ConfigError where what was asked for is not there, with what
// is.
std::optional<std::int64_t> step_to_resume(const std::string& run, const ResumeFlag& flag);

// What a run resumes with, where nothing else is given: what RUN/config.json says, or, where that
// is lost or the step was named, what the checkpoint was saved with.
TrainSettings settings_of_run(const std::string& run, std::int64_t step, bool step_was_named);

// Throws ConfigError where settings differ that change the result, unless that is allowed.
void check_settings(const std::string& run, std::int64_t step, const TrainSettings& given);

// Whether the folder holds a run of just these settings, on whatever number of ranks, that was to
// save checkpoints and was killed before it could: the very same command can then only mean to
// train. Of several machines the settings are not resolved.
bool ended_before_a_checkpoint(const TrainSettings& settings, bool several_machines);

// What can be done with a run that has ended before its last step: "trireme train --resume RUN", or
// a new run from its weights. Empty where it has left neither. `resumed`: the step that it was just
// resumed from, whose checkpoint may be what has ended it; it is read then.
std::string how_to_resume(const std::string& run,
                          std::optional<std::int64_t> resumed = std::nullopt);

// How a run that has not come to its end gets there: "trireme train --resume RUN", or the same
// training once more where it has saved nothing to resume from.
std::string how_to_complete(const std::string& run);

// For a run that nobody has named: "runs/2026-01-31_12-00-00_gpt", with a number behind it where
// that is taken.
std::string dated_folder(const std::string& model);
// Makes the folder of a new run. Throws ConfigError where it holds one. Returns the folders that
// were not there before, the innermost first.
std::vector<std::string> make_run_folder(const std::string& run);
// The same, with its settings in it. Throws Error where they cannot be written, and leaves nothing.
std::vector<std::string> begin_run_folder(const TrainSettings& settings);
// Removes folders that were made for a run which was refused before it began, with the settings and
// logs of that attempt. What anybody else has put there stays, and so does a run that has begun.
void take_back_run_folder(const std::string& run, const std::vector<std::string>& made);

}  // namespace trireme::tools
