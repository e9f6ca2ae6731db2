#include "trireme/tensor/torch_cuda.h"

#include <filesystem>

#include <dlfcn.h>

#include <ATen/Context.h>

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

}  // namespace trireme
