#pragma once

#include "trireme/settings/train_settings.h"

namespace trireme::tools {

// The settings with the device that they are trained on: looks for GPUs where they let it choose,
// or ask for one. Says on standard error why one that is there is not used. Throws ConfigError
// where cuda is asked for and cannot be had.
TrainSettings with_device(const TrainSettings& wanted, bool several_machines);

}  // namespace trireme::tools
