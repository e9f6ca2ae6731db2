#pragma once

#include <string>

#include "trireme/models/task.h"
#include "trireme/settings/train_settings.h"

namespace trireme::worker {

// What is trained, and by whom, in a line. `goes_on`: after a loss, when only the ranks are others.
std::string job_description(const TrainSettings& settings, const Trainable& model, bool goes_on);

}  // namespace trireme::worker
