#pragma once

#include <string>

namespace trireme {

// LibTorch's CUDA, for programs that link its CPU libraries alone, as trireme::trireme does. To be
// called before anything asks LibTorch for CUDA: at the beginning of main(). Throws ConfigError
// where this LibTorch was built without it. Programs that link libtorch_cuda need not call it.
void load_torch_cuda();

// The library that it loads, from beside LibTorch's others; empty where there is none.
std::string torch_cuda_library();

}  // namespace trireme
