#pragma once

#include <string>
#include <vector>

#include "trireme/train/trainer.h"

// Which steps of a run were taken with how many ranks.

namespace trireme::detail {

// Puts these after those that are there: in one part where the number of ranks is the same.
void append_steps(std::vector<StepsOnRanks>& parts, const StepsOnRanks& steps);

// "2 in steps 1 to 40, 3 in step 41"; of many, how many there are.
std::string steps_text(const std::vector<StepsOnRanks>& parts);

}  // namespace trireme::detail
