#pragma once

#include <string>

#include "trireme/average/averaging.h"

namespace trireme::detail {

std::string mode_name(const Averaging::Mode& mode);  // "local", "diloco", "gossip"
std::int64_t steps_of(const Averaging::Mode& mode);
// Throws ConfigError for values that cannot be.
void check_averaging(const Averaging::Mode& mode, const AveragingOptions& options);
// All that must be the same on all ranks.
std::string description_of(const Averaging::Mode& mode, const AveragingOptions& options);

}  // namespace trireme::detail
