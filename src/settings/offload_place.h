#pragma once

#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// Throws ConfigError where `offload` is no place, or does not go with the other settings.
void check_offload(const TrainSettings& settings);

}  // namespace trireme::detail
