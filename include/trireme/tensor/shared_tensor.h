#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/communicator.h"

namespace trireme {

// A tensor of zeros in memory that the ranks share (Communicator::allocate), so that collectives on
// it, or on contiguous views of it, work in place. Collective and blocking; every rank asks for the
// same sizes. The memory lives as long as any tensor that uses it.
at::Tensor shared_tensor(Communicator& communicator,
                         at::IntArrayRef sizes,
                         at::ScalarType dtype = at::kFloat);

}  // namespace trireme
