#pragma once

#include <string>

#include "trireme/average/averaging.h"

namespace trireme::detail {

std::string mode_name(const Averaging::Mode& mode);  // "local", "diloco", "gossip"
std::int64_t steps_of(const Averaging::Mode& mode);
// All throw ConfigError for what cannot be.
void check_steps(std::int64_t steps);  // between averagings
void check_averaging(const Averaging::Mode& mode, const AveragingOptions& options);
void check_engine_options(const EngineOptions& engine,
                          const Averaging::Mode& mode,
                          const Replicas& replicas);
// All that must be the same on all ranks.
std::string description_of(const Averaging::Mode& mode, const AveragingOptions& options);

}  // namespace trireme::detail
