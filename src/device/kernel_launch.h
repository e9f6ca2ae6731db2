#pragma once

#include <span>
#include <string>

#include "device/update.h"

// Kernels of other rooms: text that the GPU's compiler turns into machine code at its first use, as
// it does with those of this one, beside which they are kept.

namespace trireme::device {

struct KernelText {
  std::string main;                   // what is compiled; it includes
  std::span<const SourceText> texts;  // these, and what is in device/cuda/kernels
};

struct KernelLaunch {
  unsigned blocks_x = 1;
  unsigned blocks_y = 1;
  unsigned threads = 1;       // of a block
  void* stream = nullptr;     // as the driver knows it
  void* arguments = nullptr;  // the kernel's one parameter; read before the call returns
};

// Throws ConfigError where there is no such GPU or no compiler, DeviceError where the GPU fails.
void launch_kernel(int gpu, const KernelText& text, const char* name, const KernelLaunch& launch);

// 90 for compute capability 9.0.
int architecture_of(int gpu);

}  // namespace trireme::device
