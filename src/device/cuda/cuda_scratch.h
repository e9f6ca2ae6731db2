#pragma once

#include "device/cuda/cuda_calls.h"

namespace trireme::device::cuda {

// Memory for kernels that are issued on the stream while this lives, from the GPU's pool: it is
// taken and given back in the stream's order, so nobody waits.
class Scratch {
 public:
  Scratch(NativeStream stream, std::size_t bytes) : stream_(stream) {
    check(cuda_calls().allocate_async(&address_, bytes, stream), "taking memory for a kernel");
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
  ~Scratch() { cuda_calls().free_async(address_, stream_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return pointer_to(address_); }

 private:
  NativeStream stream_;
  Address address_ = 0;
};

}  // namespace trireme::device::cuda
