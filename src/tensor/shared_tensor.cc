#include "trireme/tensor/shared_tensor.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include "trireme/tensor/span.h"

namespace trireme {

at::Tensor shared_tensor(Communicator& communicator, at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::size_t bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * dtype_bytes(dtype_of(dtype));
  const SharedBuffer buffer = communicator.allocate(bytes);
  // The deleter holds the buffer: it goes with the last tensor on this storage.
  return at::from_blob(
      buffer.data(), sizes, [buffer](void*) {}, at::TensorOptions().dtype(dtype));
}

}  // namespace trireme
