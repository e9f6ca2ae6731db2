#pragma once

#include <memory>

#include "comm/rendezvous/rendezvous.h"
#include "comm/shm/progress.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// The communicator of ranks that share one machine.
std::unique_ptr<Communicator> make_shm_communicator(Membership membership, ProgressOptions options);

// Ends one of those on every rank, because the world that it belongs to has ended. `error` blames a
// rank of this communicator, or -1.
void end_shm_communicator(Communicator& communicator, const CommError& error);

}  // namespace trireme::detail
