#pragma once

#include "comparison.h"

namespace trireme::tools {

// What the two runs of a comparison cost: their speeds, and how speed grew with the ranks.
void compare_costs(Comparison& comparison);

}  // namespace trireme::tools
