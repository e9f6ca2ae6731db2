#pragma once

#include <memory>
#include <string>

#include "trireme/optim/optimizer.h"
#include "trireme/parallel/options.h"
#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// What the settings ask for. `steps`: of the whole run.
std::unique_ptr<Optimizer> optimizer_of(const TrainSettings& settings, int world);
Schedule schedule_of(const TrainSettings& settings, std::int64_t steps);
// What to tell someone whose schedule ends before the run; empty if it does not.
std::string schedule_ends_early(const TrainSettings& settings, std::int64_t steps);
EngineOptions engine_options_of(const TrainSettings& settings, std::int64_t steps);

}  // namespace trireme::detail
