#include "device/cuda/cuda_calls.h"

#include <dlfcn.h>

#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

constexpr char kDriverLibrary[] = "libcuda.so.1";

// Never unloaded: streams and memory may outlive every static object.
const CudaCalls* load_calls() {
  void* library = dlopen(kDriverLibrary, RTLD_NOW | RTLD_LOCAL);
  TRIREME_CHECK(library != nullptr,
                "a GPU was asked for, but NVIDIA's driver ({}) cannot be loaded: {}; install the "
                "driver, in a container start it with the GPU, or use the host (cpu)",
                {kDriverLibrary, dlerror()});
  static CudaCalls calls;
  const auto load = [&](auto& member, const char* symbol) {
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(dlsym(library, symbol));
    TRIREME_CHECK(
        member != nullptr,
        "NVIDIA's driver on this machine has no {}: it is older than CUDA 11.2; install a "
        "newer one, or use the host (cpu)",
        {symbol});
  };
#define TRIREME_CUDA_LOAD(member, symbol, parameters) load(calls.member, symbol);
  TRIREME_CUDA_CALLS(TRIREME_CUDA_LOAD)
#undef TRIREME_CUDA_LOAD
  const Result started = calls.init(0);
  if (started != kSuccess) {
    const char* name = nullptr;
    calls.error_name(started, &name);
    throw ConfigError(
        detail::concat("a GPU was asked for, but NVIDIA's driver finds none that it can use: {} "
                       "({}); look at nvidia-smi, or use the host (cpu)",
                       {name != nullptr ? name : "an unknown error", started}));
  }
  return &calls;
}

}  // namespace

const CudaCalls& cuda_calls() {
  static const CudaCalls* calls = load_calls();
  return *calls;
}

std::string text_of(Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  cuda_calls().error_name(result, &name);
  cuda_calls().error_text(result, &text);
  return detail::concat("{}: {}",
                        {name != nullptr ? name : "unknown error " + std::to_string(result),
                         text != nullptr ? text : "no text"});
}

void check(Result result, const char* what) {
  if (result == kSuccess) {
    return;
  }
  if (result == kOutOfMemory) {
    throw MemoryError(detail::concat(
        "the GPU has no memory left while {}: free some (nvidia-smi shows who has it), use a "
        "smaller micro-batch, a higher ZeRO stage or more GPUs",
        {what}));
  }
  throw DeviceError(
      detail::concat("the GPU failed while {}: {}; its work and memory are lost to this process: "
                     "end it, and start again from a checkpoint",
                     {what, text_of(result)}));
}

}  // namespace trireme::device::cuda
