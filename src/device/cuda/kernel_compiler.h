#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/update.h"

namespace trireme::device::cuda {

// What a compiler of kernels is given.
struct KernelSource {
  std::string main;
  std::vector<SourceText> texts;  // what `main` may include
  int architecture = 0;           // 90 for compute capability 9.0
};

// NVRTC, the compiler that comes with CUDA and with LibTorch's CUDA builds, as a library that is
// loaded when it is needed: neither a toolkit nor a GPU has to be there.
class KernelCompiler {
 public:
  // Throws ConfigError where the library is not found.
  static const KernelCompiler& instance();

  const std::string& version() const { return version_; }  // "13.0"
  // Machine code. Throws ConfigError for a GPU that this compiler is too old for, InternalError
  // with the compiler's words for what it does not accept.
  std::string compile(const KernelSource& source) const;

 private:
  KernelCompiler();

  struct Calls;
  const Calls* calls_;
  std::string version_;
};

// Options that the bits depend on, for the key of a cache too.
std::span<const char* const> kernel_options();

}  // namespace trireme::device::cuda
