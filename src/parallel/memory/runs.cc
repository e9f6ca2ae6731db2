#include "parallel/memory/runs.h"

#include "trireme/tensor/span.h"

namespace trireme::detail {

Span run_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.numel(), *find_dtype(tensor.scalar_type())};
}
ConstSpan const_run_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.numel(), *find_dtype(tensor.scalar_type())};
}

}  // namespace trireme::detail
