#include "parallel/model/broadcast.h"

#include <ATen/core/grad_mode.h>

namespace trireme::detail {

void write_elements(const at::Tensor& to, const at::Tensor& from) {
  at::Tensor distinct = to;
  at::Tensor values = from;
  for (std::int64_t d = 0; d < to.dim(); ++d) {
    // An expanded buffer: copy_ refuses to write to one element several times.
    if (to.stride(d) == 0 && to.size(d) > 1) {
      distinct = distinct.narrow(d, 0, 1);
      values = values.narrow(d, 0, 1);
    }
  }
  distinct.copy_(values);
}

void broadcast_tensor(const at::Tensor& tensor, Communicator& ranks, int root) {
  if (!tensor.defined() || tensor.numel() == 0 || ranks.size() == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.cpu().contiguous();  // through the host, wherever it is
  ranks
      .broadcast({values.data_ptr(), static_cast<std::int64_t>(values.nbytes()), Dtype::kUint8},
                 root)
      .wait();
  if (!values.is_same(tensor)) {
    write_elements(tensor, values);
  }
}

}  // namespace trireme::detail
