#pragma once

#include <string>

#include "device/cuda/cuda_calls.h"
#include "device/cuda/kernels.h"
#include "trireme/core/device.h"

namespace trireme::device::cuda {

// One GPU of this process: the context that LibTorch uses too, and its kernels. Never destroyed:
// memory may outlive every static object.
class Gpu {
 public:
  // Throws ConfigError where there is no such GPU, or it cannot do what is needed here.
  explicit Gpu(int index);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Device device() const { return {DeviceType::kCuda, static_cast<std::int16_t>(index_)}; }
  int index() const { return index_; }
  // As nvidia-smi has it, in other letters: the same for every process, whatever its index there.
  std::string uuid() const;
  int processors() const { return processors_; }
  int architecture() const { return architecture_; }
  Context context() const { return context_; }
  Kernels& kernels() { return kernels_; }

 private:
  int attribute(int which) const;

  int index_;
  DeviceHandle handle_ = 0;
  Context context_ = nullptr;
  int architecture_;
  int processors_;
  Kernels kernels_;
};

// Of any GPU, without opening it.
std::string uuid_of(DeviceHandle gpu);

// The GPU is the one that calls of this thread are for; afterwards, the one from before.
class Current {
 public:
  explicit Current(const Gpu& gpu) {
    check(cuda_calls().context_push(gpu.context()), "turning to a GPU");
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
  ~Current() {
    Context popped = nullptr;
    cuda_calls().context_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

}  // namespace trireme::device::cuda
