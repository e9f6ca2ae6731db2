#include "device/kernel_launch.h"

#include <map>
#include <memory>
#include <mutex>

#include "device/cuda/gpu.h"

namespace trireme::device {
namespace {

// Never destroyed: a thread of LibTorch's may launch to the end.
cuda::Gpu& gpu_at(int index) {
  static std::mutex mutex;
  static auto* gpus = new std::map<int, std::unique_ptr<cuda::Gpu>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<cuda::Gpu>& gpu = (*gpus)[index];
  if (gpu == nullptr) {
    gpu = std::make_unique<cuda::Gpu>(index);
  }
  return *gpu;
}

}  // namespace

void launch_kernel(int gpu, const KernelText& text, const char* name, const KernelLaunch& launch) {
  cuda::Gpu& on = gpu_at(gpu);
  const cuda::Current current(on);
  void* parameters[] = {launch.arguments};
  cuda::check(cuda::cuda_calls().launch(on.kernels().find(text, name),
                                        launch.blocks_x,
                                        launch.blocks_y,
                                        1,
                                        launch.threads,
                                        1,
                                        1,
                                        0,
                                        static_cast<cuda::NativeStream>(launch.stream),
                                        parameters,
                                        nullptr),
              "starting a kernel");
}

int architecture_of(int gpu) {
  return gpu_at(gpu).architecture();
}

}  // namespace trireme::device
