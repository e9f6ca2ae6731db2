#pragma once

#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// Puts in what follows from settings.sync, and checks what must fit together with it. Once the
// ranks and the batch are known. Throws ConfigError.
void choose_sync(TrainSettings& settings);

}  // namespace trireme::detail
