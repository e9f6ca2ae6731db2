#pragma once

#include "trireme/launch/launcher.h"

namespace trireme::detail {

// check_launch, and says what has no effect.
void check_options(const LaunchOptions& options);

}  // namespace trireme::detail
