#pragma once

#include <cstdint>

#include "comm/shm/endpoint.h"

namespace trireme::detail {

// Throws CommError (kMismatch), naming both ranks and both calls, when `peer` made another call
// than this rank as operation `sequence`. Both have published it.
void check_same_call(const Endpoint& endpoint, std::uint32_t sequence, int peer);

// Throws CommError (kMismatch) when the lengths of the ranks' inputs and outputs, or whom they name
// as neighbours, do not fit each other in an operation where no rank alone can know. All ranks have
// published it; `operation` is this rank's.
void check_splits(const Endpoint& endpoint, std::uint32_t sequence, const Operation& operation);

// "#17 all_reduce(sum, float32 x 1024)"; "nothing yet" for number 0.
std::string describe_slot(const Endpoint& endpoint, int peer, std::uint64_t number);

}  // namespace trireme::detail
