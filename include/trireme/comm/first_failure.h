#pragma once

#include <optional>
#include <string>

#include "trireme/comm/communicator.h"

namespace trireme {

// What the first rank that failed has to say.
struct RankFailure {
  int rank = 0;
  std::string reason;
};

// Lets all ranks know of a failure that only some have seen, so that all throw and none waits for
// one that has. `mine` is empty where this rank has not failed. Collective.
std::optional<RankFailure> first_failure(Communicator& ranks, const std::string& mine);

}  // namespace trireme
