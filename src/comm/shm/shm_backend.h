#pragma once

#include <memory>

#include "comm/algo/algorithms.h"
#include "comm/queue/operation_queue.h"
#include "comm/shm/membership.h"

namespace trireme::detail {

// The queue of ranks that share one machine. What of `options` depends on the machine is completed.
// An `algorithm` with a name needs lanes (MembershipOptions::lanes).
std::shared_ptr<OperationQueue> make_shm_queue(Membership membership,
                                               Algorithm algorithm,
                                               QueueOptions options);

}  // namespace trireme::detail
