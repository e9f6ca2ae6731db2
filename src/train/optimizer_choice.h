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
// A warning where an eps of 0 leaves a division by 0; empty: it is not 0, or not used.
std::string zero_eps(const TrainSettings& settings);
EngineOptions engine_options_of(const TrainSettings& settings, std::int64_t steps);

}  // namespace trireme::detail
