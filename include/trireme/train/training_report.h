#pragma once

#include <string>
#include <vector>

#include "trireme/train/trainer.h"

namespace trireme {

// A result for people: metrics, throughput, memory by category beside what DDP would have taken,
// and where the time went.
std::string summary_table(const TrainSettings& settings, const TrainResult& result);

// The same for programs (summary.json).
std::string summary_json(const TrainSettings& settings, const TrainResult& result);

// Of cross-validation: each fold's metrics, their means and intervals.
std::string folds_table(const std::vector<TrainResult>& folds);
std::string folds_json(const TrainSettings& settings, const std::vector<TrainResult>& folds);

}  // namespace trireme
