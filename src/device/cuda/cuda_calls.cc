#include "device/cuda/cuda_calls.h"

#include <dlfcn.h>

#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

constexpr char kDriverLibrary[] = "libcuda.so.1";

// What to do about an error of the driver's, where there is more to say than its name.
const char* advice(Result result) {
  constexpr Result kDeviceUnavailable = 46;
  constexpr Result kNoDevice = 100;
  constexpr Result kEccUncorrectable = 214;
  constexpr Result kSystemDriverMismatch = 803;
  constexpr Result kFirstOfMps = 805;
  constexpr Result kLastOfMps = 810;
  if (result >= kFirstOfMps && result <= kLastOfMps) {
    return "; it is used through MPS, whose daemon does not answer or refuses this process: start "
           "it (nvidia-cuda-mps-control -d), or do without it (no CUDA_MPS_PIPE_DIRECTORY, and no "
           "daemon)";
  }
  switch (result) {
    case kDeviceUnavailable:
      return "; another process has the GPU for itself (nvidia-smi -q -d COMPUTE shows its mode)";
    case kNoDevice:
      return "; CUDA_VISIBLE_DEVICES may hide the GPUs";
    case kEccUncorrectable:
      return "; its memory has an error that cannot be corrected: reset it (nvidia-smi -r), and "
             "replace it if it comes again";
    case kSystemDriverMismatch:
      return "; the driver was replaced while it ran: restart the machine";
    default:
      return "";
  }
}

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
                       "({}){}; look at nvidia-smi, or use the host (cpu)",
                       {name != nullptr ? name : "an unknown error", started, advice(started)}));
  }
  return &calls;
}

}  // namespace

bool has_driver() {
  return dlopen(kDriverLibrary, RTLD_LAZY | RTLD_LOCAL) != nullptr;
}

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
      detail::concat("the GPU failed while {}: {}{}; its work and memory are lost to this process: "
                     "end it, and start again from a checkpoint",
                     {what, text_of(result), advice(result)}));
}

}  // namespace trireme::device::cuda
