#include "trireme/comm/shared_buffer.h"

#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme {

std::size_t SharedBuffer::page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

Span SharedBuffer::span(Dtype dtype, std::int64_t numel, std::size_t offset) const {
  TRIREME_CHECK(impl_, "this SharedBuffer holds no memory: get one from Communicator::allocate");
  const std::size_t needed = static_cast<std::size_t>(numel) * dtype_bytes(dtype);
  TRIREME_CHECK(numel >= 0 && offset <= size_bytes() && needed <= size_bytes() - offset,
                "a shared buffer of {} bytes cannot hold {} elements of {} at byte {}",
                {size_bytes(), numel, dtype_name(dtype), offset});
  TRIREME_CHECK(offset % dtype_bytes(dtype) == 0,
                "byte {} is not aligned for {}, which needs a multiple of {}",
                {offset, dtype_name(dtype), dtype_bytes(dtype)});
  return {data() + offset, numel, dtype, impl_, impl_->device()};
}

}  // namespace trireme
