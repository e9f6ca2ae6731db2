#include "trireme/core/host_memory.h"

#include <cerrno>

#include <sys/mman.h>

#include "trireme/core/error.h"

namespace trireme {

HostMemory::HostMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw MemoryError(detail::concat("memory of ",
                                     bytes,
                                     " bytes was requested and refused: ",
                                     detail::errno_text(errno),
                                     ": free memory, raise the limit (ulimit -v), or use a higher "
                                     "ZeRO stage or more ranks"));
  }
  madvise(data, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(data);
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace trireme
