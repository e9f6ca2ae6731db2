#pragma once

#include <cstdint>

#include "comm/shm/station.h"

namespace trireme::detail {

// Throws CommError (kMismatch), naming both ranks and both calls, when `peer` made another call
// than this rank as operation `sequence`. Both have published it.
void check_same_call(const Station& station, std::uint32_t sequence, int peer);

// Throws CommError (kMismatch) when the lengths of the ranks' inputs and outputs do not fit each
// other in an operation where no rank alone can know. All ranks have published it.
void check_splits(const Station& station, std::uint32_t sequence);

// What the control memory calls operation `number`, which counts from 1.
std::uint32_t sequence_of(const Station& station, std::uint64_t number);

// "#17 all_reduce(sum, float32 x 1024)"; "nothing yet" for number 0.
std::string describe_slot(const Station& station, int peer, std::uint64_t number);

}  // namespace trireme::detail
