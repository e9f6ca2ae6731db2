#include "trireme/tensor/shared_tensor.h"

#include <limits>

#include <ATen/ops/from_blob.h>
#include <c10/util/safe_numerics.h>

#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme {

at::Tensor shared_tensor(Communicator& communicator, at::IntArrayRef sizes, at::ScalarType dtype) {
  std::uint64_t bytes = dtype_bytes(dtype_of(dtype));
  bool fits = true;
  for (const std::int64_t size : sizes) {
    TRIREME_CHECK(size >= 0, "shared_tensor: expected sizes of 0 or more, found ", sizes);
    fits &= !c10::mul_overflows(bytes, static_cast<std::uint64_t>(size), &bytes);
  }
  TRIREME_CHECK(fits && bytes <= std::numeric_limits<std::int64_t>::max(),
                "shared_tensor: a tensor of sizes {} has more bytes than can be counted",
                {sizes});
  const SharedBuffer buffer = communicator.allocate(bytes);
  // The deleter holds the buffer: it goes with the last tensor on this storage.
  return at::from_blob(
      buffer.data(), sizes, [buffer](void*) {}, at::TensorOptions().dtype(dtype));
}

}  // namespace trireme
