#pragma once

#include <cstdint>

#include "trireme/comm/communicator.h"
#include "trireme/data/views.h"

namespace trireme::detail {

// fingerprint_of (train_progress.h) the data. Throws ConfigError on every rank where one has other
// samples than rank 0: on another machine the same path may lead to another file, and nothing else
// would notice that each rank trains on its own. Collective.
std::int64_t fingerprint_of_all_ranks(const Parts& data, Communicator& ranks);

}  // namespace trireme::detail
