// What a program without CUDA has in its place (TRIREME_CUDA=off).

#include "device/cuda/cuda_driver.h"
#include "device/kernel_launch.h"
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

void launch_kernel(int gpu,
                   const KernelText& /*text*/,
                   const char* /*name*/,
                   const KernelLaunch& /*launch*/) {
  architecture_of(gpu);
}

int architecture_of(int gpu) {
  throw ConfigError(
      detail::concat("a kernel for cuda:{} was asked for, but {}", {gpu, kWithoutCuda}));
}

GpuReport examine_gpus() {
  return {.why_none = kWithoutCuda, .why_no_compiler = kWithoutCuda};
}

}  // namespace trireme::device
