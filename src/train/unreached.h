#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// A line for everything that was asked for and that a run of so many steps does not come to.
std::vector<std::string> unreached(const TrainSettings& settings, std::int64_t steps);

}  // namespace trireme::detail
