#pragma once

#include <string>

#include "trireme/settings/train_settings.h"

namespace trireme {

// Whether this is the folder of a run: every run writes its settings there, as config.json,
// in which it names its model.
bool is_run_folder(const std::string& path);

// For messages where it is not: "expected the folder of a run, with the config.json that trireme
// train writes, found a file; it belongs to the run in "runs/a": give that".
std::string expected_run_folder(const std::string& path);

// Where data of these settings is, whose path may be relative to where the run was started; as it
// is named where there is nothing.
std::string data_path(const std::string& named, const TrainSettings& settings);

// Removes what a run, or a fold of one, has recorded that nothing goes on from: training anew gives
// the same.
void forget_recorded(const std::string& run);

}  // namespace trireme
