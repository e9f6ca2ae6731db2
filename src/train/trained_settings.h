#pragma once

#include <string>

#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// Of a run that has nothing left to train: what it was trained with (JSON, as a checkpoint has it),
// whatever it is asked again with, but for what still has an effect: on what it is evaluated, where
// things are, and what is written. The model may be one that has no name here.
TrainSettings settings_as_trained(const std::string& trained, const TrainSettings& asked);

}  // namespace trireme::detail
