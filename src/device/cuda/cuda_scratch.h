#pragma once

#include <memory>

#include "device/cuda/gpu.h"

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

// The same for work that others issue, wherever it is given back.
class ScratchOf {
 public:
  ScratchOf(Gpu& gpu, NativeStream stream, std::size_t bytes)
      : gpu_(gpu), scratch_(std::make_unique<Scratch>(stream, bytes)) {}
  // NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
  ~ScratchOf() {
    const Current current(gpu_);
    scratch_.reset();
  }
  ScratchOf(const ScratchOf&) = delete;
  ScratchOf& operator=(const ScratchOf&) = delete;

  void* data() const { return scratch_->data(); }

 private:
  Gpu& gpu_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace trireme::device::cuda
