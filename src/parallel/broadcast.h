#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// Rank 0's values to all, whatever the dtype and the strides.
void broadcast_tensor(const at::Tensor& tensor, Communicator& ranks);

}  // namespace trireme::detail
