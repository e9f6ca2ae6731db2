#pragma once

#include <cstdint>

#include "trireme/checkpoint/manifest.h"
#include "trireme/comm/communicator.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {

// Compares what the ranks want to save before any of them writes. Throws ConfigError, on every
// rank, where they mean different steps or tensors (a mix-up that checksums cannot see), or where
// one has names or notes that are not UTF-8. Collective.
void agree_on_request(Communicator& ranks,
                      std::int64_t step,
                      const StateView& state,
                      const Notes& notes);

}  // namespace trireme::detail
