#pragma once

#include <vector>

#include "doctor/pair_matrix.h"
#include "trireme/comm/communicator.h"

namespace trireme::detail {

// Every pair measures by itself, one after another, while the other ranks wait in a barrier; takes
// some seconds at most where messages arrive within milliseconds. Collective; the same result on
// every rank.
PairMatrix measure_pairs(Communicator& world, const std::vector<int>& machine_of);

}  // namespace trireme::detail
