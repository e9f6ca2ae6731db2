#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <torch/types.h>

#include "trireme/core/gpu_use.h"

namespace trireme::device {
class GpuMeter;
}

namespace trireme::detail {

// The GPUs on which this machine's ranks train, looked at now and then.
class GpuWatch {
 public:
  using Say = std::function<void(const std::string& text)>;

  // `first`: this rank's; the `count` - 1 others are those after it. Where they cannot be asked, a
  // line says so, once.
  GpuWatch(at::Device first, int count, Say say);
  ~GpuWatch();

  // At most twice in a second; nothing in between.
  std::optional<GpuUse> look();

 private:
  std::unique_ptr<device::GpuMeter> meter_;
  Say say_;
  std::chrono::steady_clock::time_point looked_;
};

}  // namespace trireme::detail
