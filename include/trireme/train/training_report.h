#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/train/trainer.h"

namespace trireme {

// A result for people: metrics, throughput, memory by category beside what DDP would have taken,
// and where the time went.
std::string summary_table(const TrainSettings& settings, const TrainResult& result);

// The same for programs (summary.json). `class_names`: where the data has names for its classes.
std::string summary_json(const TrainSettings& settings,
                         const TrainResult& result,
                         const std::vector<std::string>& class_names = {});
// The result that summary_json has written of a training that had come to its end, for reports on
// it: without single samples and classes. Nothing for any other text.
std::optional<TrainResult> result_in_summary(const std::string& text);

// Of more folds than this, single ones say little, and all of them fill screens.
inline constexpr std::size_t kMostFoldsShown = 10;

// Of cross-validation: each fold's metrics, or the least and the largest of many; their means and
// intervals; of rmse the root of the mean of its squares. In how many of them the `goal` was
// reached, if there is one. A fold that was interrupted, the last one then, does not count.
std::string folds_table(const std::vector<TrainResult>& folds, const std::string& goal = "");
std::string folds_json(const TrainSettings& settings, const std::vector<TrainResult>& folds);

}  // namespace trireme
