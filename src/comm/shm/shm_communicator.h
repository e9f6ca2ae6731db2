#pragma once

#include <memory>

#include "comm/rendezvous/rendezvous.h"
#include "comm/shm/progress.h"
#include "trireme/comm/communicator.h"

namespace trireme::detail {

// The communicator of ranks that share one machine.
std::unique_ptr<Communicator> make_shm_communicator(Membership membership, ProgressOptions options);

}  // namespace trireme::detail
