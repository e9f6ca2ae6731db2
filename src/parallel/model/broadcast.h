#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/comm/communicator.h"

namespace trireme::detail {

// `to` gets the values of `from`, which has the same sizes; each element once, also where `to`
// shows it many times (expand), to which LibTorch does not write.
void write_elements(const at::Tensor& to, const at::Tensor& from);

// The values of `root` to all, whatever the dtype and the strides.
void broadcast_tensor(const at::Tensor& tensor, Communicator& ranks, int root = 0);

}  // namespace trireme::detail
