#include "trireme/tensor/torch_cuda.h"

#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include "device/cuda/cuda_driver.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

// Where LibTorch is loaded from.
std::filesystem::path torch_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&at::globalContext), &info);
  return info.dli_fname != nullptr ? std::filesystem::path(info.dli_fname).parent_path()
                                   : std::filesystem::path();
}

class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

std::string why_no_torch_cuda() {
  return detail::concat("the LibTorch in \"",
                        torch_folder().string(),
                        "\" was built without CUDA: install one that has it (docs/gpu.md)");
}

}  // namespace

std::string torch_cuda_library() {
  const std::filesystem::path library = torch_folder() / "libtorch_cuda.so";
  std::error_code error;
  return std::filesystem::exists(library, error) ? library.string() : std::string();
}

void load_torch_cuda() {
  const std::string library = torch_cuda_library();
  TRIREME_CHECK(!library.empty(),
                "CUDA was asked for, but the LibTorch in \"{}\" was built without it: install one "
                "that has it, or use the CPU",
                {torch_folder().string()});
  // Its kernels and hooks register themselves for everybody; it is never unloaded.
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  TRIREME_CHECK(loaded != nullptr, "LibTorch's CUDA cannot be loaded: ", dlerror());
}

UsableGpus usable_gpus() {
  const device::GpuReport report = device::examine_gpus();
  UsableGpus usable;
  if (report.gpus.empty()) {
    usable.why_none = report.why_none.empty() ? "this machine has none (look at nvidia-smi and "
                                                "CUDA_VISIBLE_DEVICES)"
                                              : report.why_none;
  } else if (torch_cuda_library().empty()) {
    usable.why_none = why_no_torch_cuda();
  } else if (report.compiler.empty()) {
    usable.why_none = report.why_no_compiler;
  } else {
    for (const device::GpuFacts& gpu : report.gpus) {
      if (!gpu.shares_memory) {
        return {.why_none = detail::concat(
                    "ranks cannot share the memory of {}: its driver or its virtual machine does "
                    "not have memory handles as file descriptors",
                    {gpu.name})};
      }
      usable.names.push_back(gpu.name);
    }
  }
  return usable;
}

at::Device use_gpu(int index) {
  // Read when cuBLAS starts; without it, its sums depend on what else runs.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  load_torch_cuda();
  const int count = torch::cuda::device_count();
  TRIREME_CHECK(index >= 0 && index < count,
                "cuda:{} was asked for, but LibTorch sees {} GPUs: it may be built for another "
                "driver, or not for this type of GPU; use the CPU",
                {index, count});
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);  // a help for finding mistakes
  context.setBenchmarkCuDNN(false);
  {
    Silent nothing;  // there is a newer way to say it, which older versions do not have
    const c10::WarningUtils::WarningHandlerGuard quiet(&nothing);
    context.setAllowTF32CuDNN(false);
    context.setAllowTF32CuBLAS(false);
  }
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

}  // namespace trireme
