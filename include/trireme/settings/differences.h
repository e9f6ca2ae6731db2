#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/settings/train_settings.h"

namespace trireme {

// A setting with two values, as JSON.
struct SettingDifference {
  std::string name;
  std::string saved;
  std::string given;
  std::string note{};  // why it changes the result, where that does not follow from its name
};

// The settings that make what `given` computes differ from what `saved` does, which is JSON as
// to_json has written it. All others may change between two parts of a run without changing a bit
// of it: how many ranks there are, what each of them holds, what is written. (The number of ranks
// counts where the settings let the result depend on it: sum_order = local_first, lr_scaling, and
// sync, of which the number of replicas does.)
// Throws ConfigError for text that is no JSON.
std::vector<SettingDifference> differences_of_result(const std::string& saved,
                                                     const TrainSettings& given);

// A line for each: "  lr: 0.1 in the checkpoint, 0.2 given".
std::string to_string(const std::vector<SettingDifference>& differences,
                      const std::string& saved_in = "the checkpoint");

// For resuming from a checkpoint of `step` that was saved with other settings. Throws ConfigError
// with all differences that change the result and what can be done, unless given.allow_changes;
// returns them then.
std::vector<SettingDifference> check_same_result(const std::string& saved,
                                                 const TrainSettings& given,
                                                 std::int64_t step);

// What decides the bits of a run whose gradients arrive in a recorded order, in a word: a part of a
// run that has another one is a part of another record. How long the run is, and when it is
// evaluated and saved, decide nothing here where the learning rate does not follow them.
std::string recorded_subject(const TrainSettings& settings);

// For a replay of the run in given.replay. Throws ConfigError where it is no such run, or has other
// settings that change the result.
void check_same_replay(const TrainSettings& given);

// For going on with the cross-validation in `run`. Throws ConfigError as above; allow_changes does
// not help, since a mean over folds of different trainings is none.
void check_same_folds(const std::string& saved, const TrainSettings& given, const std::string& run);

}  // namespace trireme
