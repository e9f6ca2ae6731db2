#include "parallel/broadcast.h"

#include <ATen/core/grad_mode.h>

namespace trireme::detail {

void broadcast_tensor(const at::Tensor& tensor, Communicator& ranks, int root) {
  if (!tensor.defined() || tensor.numel() == 0 || ranks.size() == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.contiguous();
  ranks
      .broadcast({values.data_ptr(), static_cast<std::int64_t>(values.nbytes()), Dtype::kUint8},
                 root)
      .wait();
  if (!values.is_same(tensor)) {
    tensor.copy_(values);
  }
}

}  // namespace trireme::detail
