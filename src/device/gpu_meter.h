#pragma once

#include <string>
#include <vector>

#include "trireme/core/gpu_use.h"

// What GPUs report of themselves, by the management library of NVIDIA's driver
// (libnvidia-ml.so.1), which is loaded when it is first asked for. A look takes some tens of
// microseconds, and does not wait for work on the GPU.

namespace trireme::device {

class GpuMeter {
 public:
  // `identities` as Driver::identity has them. Throws ConfigError where they cannot be asked.
  explicit GpuMeter(const std::vector<std::string>& identities);

  // Throws DeviceError where one does not answer any more.
  GpuUse read() const;

 private:
  struct Calls;
  static const Calls& calls();

  std::vector<struct NvmlDevice*> gpus_;
};

}  // namespace trireme::device
