#pragma once

#include "doctor/finding.h"
#include "trireme/comm/world.h"

namespace trireme::detail {

// Whether ordinary memory passes between `ranks` ranks of a machine as fast as it can.
Finding judge_ordinary_memory(const OrdinaryMemory& memory, int ranks);

}  // namespace trireme::detail
