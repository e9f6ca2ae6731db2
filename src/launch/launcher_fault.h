#pragma once

#include "trireme/core/drill.h"

namespace trireme::detail {

// A drill's fault of a launcher, which this process does to itself: it is killed, or stopped for a
// while and then goes on.
void inflict_on_launcher(const DrillFault& fault);

}  // namespace trireme::detail
