#pragma once

#include <set>
#include <string>

#include "train_resume.h"
#include "trireme/launch/launcher.h"
#include "trireme/settings/train_settings.h"

// What a command is refused for before a folder is made for its run.

namespace trireme::tools {

// Data that is not there, or that the model does not take; and weights to start from that are not
// there, unless the run `resumes`, which has its own. Throws ConfigError.
void check_data(const TrainSettings& settings, bool resumes);

// What a run that is resumed from `step` cannot become, whatever is allowed to change. `before`:
// what it was. Throws ConfigError.
void check_goes_on(const std::string& run,
                   std::int64_t step,
                   const TrainSettings& before,
                   const TrainSettings& settings);

// Notes where relative paths of data are found from, for a run that is resumed from elsewhere.
void remember_folder(TrainSettings& settings);

// Of the data; "auto" where nobody knows.
std::string known_format(const TrainSettings& settings);

// Settings that have no effect beside the others (settings/unused.h). Throws ConfigError for those
// that were `typed`, unless they are typed as what they are anyway; warns of those that the file
// `config` gives (empty: there is none). `given` is what both say, `resolved` what is trained with,
// with what an earlier part of the run had.
void check_effects(const TrainSettings& given,
                   const std::set<std::string>& typed,
                   const std::string& config,
                   TrainSettings resolved);

// Throws ConfigError where a run cannot go on with other ranks, or could not keep its result.
void check_elastic(const TrainSettings& settings, const LaunchOptions& options);

// Throws ConfigError where the run that is to be replayed is not one, or another one. Where nobody
// knows the number of ranks yet, they look.
void check_replay(const TrainSettings& settings, bool knows_ranks);

// Faults of what this training does not do are refused.
void check_drill(const TrainSettings& settings, const LaunchOptions& options);
// Whether the same command goes on with the run when it is started again. `launcher`: another that
// has started this process; empty: none.
void check_supervised(const TrainSettings& given,
                      const std::string& run,
                      const ResumeFlag& resume,
                      const std::string& launcher);

}  // namespace trireme::tools
