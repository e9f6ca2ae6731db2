#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// The divisors of a batch, rising.
std::vector<std::int64_t> divisors_of(std::int64_t batch);

// The next smaller micro-batch that divides the batch; 0 where there is none.
std::int64_t smaller_micro_batch(std::int64_t batch, std::int64_t micro_batch);

// The largest divisor of `batch`, up to `most`, for which `fits` is true on every rank; sizes are
// tried from 1 on, since memory grows with them. 0 where not even 1 fits. Collective.
std::int64_t largest_micro_batch(std::int64_t batch,
                                 std::int64_t most,
                                 const std::function<bool(std::int64_t micro_batch)>& fits,
                                 Communicator& ranks);

}  // namespace trireme::detail
