#pragma once

#include <cstdint>
#include <vector>

#include "trireme/average/averaging.h"

namespace trireme::detail {

// Who gossips with whom in a round. Every replica has as many that it hears from as that hear it,
// so that the mean of all stays what it is.
struct Neighbours {
  std::vector<int> from;
  std::vector<int> to;
};
Neighbours neighbours_of(int replica, int replicas, const Gossip& gossip, std::int64_t round);

}  // namespace trireme::detail
