#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// The values of `root` to all, whatever the dtype and the strides.
void broadcast_tensor(const at::Tensor& tensor, Communicator& ranks, int root = 0);

}  // namespace trireme::detail
