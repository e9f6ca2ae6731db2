#pragma once

#include <string>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// Ranks that write a checkpoint tell each other through its folder: throws ConfigError, on every
// rank, where one of them does not see what rank 0 writes there. Collective.
void check_shared_folder(Communicator& ranks, const std::string& folder);

}  // namespace trireme::detail
