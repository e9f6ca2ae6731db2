#pragma once

#include <string>

#include <c10/core/Device.h>

#include "trireme/core/usable_gpus.h"

namespace trireme {

// LibTorch's CUDA, for programs that link its CPU libraries alone, as trireme::trireme does. To be
// called before anything asks LibTorch for CUDA: at the beginning of main(). Throws ConfigError
// where this LibTorch was built without it. Programs that link libtorch_cuda need not call it.
void load_torch_cuda();

// The library that it loads, from beside LibTorch's others; empty where there is none.
std::string torch_cuda_library();

// The GPUs that this program and its LibTorch can use. Opens none of them.
UsableGpus usable_gpus();

// Makes a GPU the one that this process works on, as training needs it: loads LibTorch's CUDA, and
// lets LibTorch take nothing but kernels that give the same bits every time, in full float32 (no
// TF32). An operator that has no such kernel is refused by LibTorch, by name. Throws ConfigError.
at::Device use_gpu(int index);

}  // namespace trireme
