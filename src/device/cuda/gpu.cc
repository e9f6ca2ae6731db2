#include "device/cuda/gpu.h"

#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

DeviceHandle handle_of(int index) {
  int count = 0;
  check(cuda_calls().device_count(&count), "counting the GPUs");
  TRIREME_CHECK(index >= 0 && index < count,
                "cuda:{} was asked for, but this process sees {}: choose one of these, look at "
                "CUDA_VISIBLE_DEVICES, or use the host (cpu)",
                {index, count == 1 ? "one GPU, cuda:0" : std::to_string(count) + " GPUs"});
  DeviceHandle handle = 0;
  check(cuda_calls().device_get(&handle, index), "finding a GPU");
  return handle;
}

}  // namespace

Gpu::Gpu(int index)
    : index_(index),
      handle_(handle_of(index)),
      architecture_(attribute(kMajor) * 10 + attribute(kMinor)),
      processors_(attribute(kProcessors)),
      kernels_(architecture_) {
  TRIREME_CHECK(attribute(kHasDescriptors) != 0 && attribute(kHasPools) != 0,
                "cuda:{} cannot share memory by descriptors, or has no memory pools: its driver or "
                "its virtual machine does not allow it; use the host (cpu)",
                {index});
  check(cuda_calls().context_retain(&context_, handle_), "opening a GPU");
}

std::string Gpu::uuid() const {
  return uuid_of(handle_);
}

std::string uuid_of(DeviceHandle gpu) {
  unsigned char bytes[16] = {};
  check(cuda_calls().device_uuid(bytes, gpu), "asking a GPU who it is");
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

int Gpu::attribute(int which) const {
  int value = 0;
  check(cuda_calls().device_attribute(&value, which, handle_), "asking a GPU what it can do");
  return value;
}

}  // namespace trireme::device::cuda
