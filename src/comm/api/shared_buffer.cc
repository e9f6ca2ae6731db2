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
                "a shared buffer of ",
                size_bytes(),
                " bytes cannot hold ",
                numel,
                " elements of ",
                dtype_name(dtype),
                " at byte ",
                offset);
  TRIREME_CHECK(offset % dtype_bytes(dtype) == 0,
                "byte ",
                offset,
                " is not aligned for ",
                dtype_name(dtype),
                ", which needs a multiple of ",
                dtype_bytes(dtype));
  return {data() + offset, numel, dtype, impl_};
}

}  // namespace trireme
