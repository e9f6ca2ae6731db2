#pragma once

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

}  // namespace trireme::detail
