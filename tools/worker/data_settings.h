#pragma once

#include "trireme/data/source.h"
#include "trireme/settings/train_settings.h"

namespace trireme::worker {

// What the settings say of the data.
DataSource source_of(const TrainSettings& settings);

}  // namespace trireme::worker
