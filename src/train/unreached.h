#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/average/averaging.h"
#include "trireme/settings/train_settings.h"

namespace trireme::detail {

struct Extent {
  std::int64_t steps = 0;  // of the whole run
  std::int64_t done = 0;   // before it was resumed
};
// A line for everything that was asked for and that such a run does not come to. `averaging`: of so
// many replicas, after what was saved of it is loaded; null: none.
std::vector<std::string> unreached(const TrainSettings& settings,
                                   const Extent& extent,
                                   const Averaging* averaging,
                                   int replicas);

// A line for what needs an evaluation, in a run that has nothing to evaluate on; empty: nothing
// does.
std::string unevaluated(const TrainSettings& settings);

}  // namespace trireme::detail
