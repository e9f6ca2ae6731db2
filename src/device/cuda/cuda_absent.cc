// What a program without CUDA has in its place (TRIREME_CUDA=off).

#include "device/cuda/cuda_driver.h"
#include "trireme/core/error.h"

namespace trireme::device {
namespace {

constexpr char kWithoutCuda[] =
    "this program was built without CUDA (TRIREME_CUDA=off): build it with TRIREME_CUDA=auto, or "
    "use the host (cpu)";

}  // namespace

void use_cuda(Device device) {
  throw ConfigError(detail::concat(device_name(device), " was asked for, but ", kWithoutCuda));
}

GpuReport examine_gpus() {
  return {.why_none = kWithoutCuda, .why_no_compiler = kWithoutCuda};
}

}  // namespace trireme::device
