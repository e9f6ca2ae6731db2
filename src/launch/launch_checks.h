#pragma once

#include "trireme/launch/launcher.h"

namespace trireme::detail {

// What can be seen to be wrong before anything is started or anybody is met. Throws ConfigError.
void check_options(const LaunchOptions& options);

}  // namespace trireme::detail
