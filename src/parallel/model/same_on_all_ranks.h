#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// Throws ConfigError on every rank where the lines of some rank are not those of rank 0, with the
// first that differs: "`what` differs between ranks: rank 0 has ... where rank 2 has ...:
// `advice`". Collective.
void check_same_on_all_ranks(const std::string& what,
                             const std::vector<std::string>& lines,
                             const std::string& advice,
                             Communicator& ranks);

// Does something that may fail on some ranks only, such as taking memory, and throws on all of them
// if it does: the original error where it failed, a ConfigError, MemoryError or Error that names
// the rank elsewhere. What is done must not communicate, except where all ranks hear of its
// failures anyway. Collective, and a barrier.
void all_or_none(Communicator& ranks, const std::function<void()>& action);

}  // namespace trireme::detail
