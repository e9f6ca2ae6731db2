#pragma once

#include <map>
#include <mutex>
#include <string>

#include "device/cuda/cuda_calls.h"
#include "device/cuda/kernel_compiler.h"
#include "device/kernel.h"
#include "device/kernel_launch.h"

namespace trireme::device::cuda {

// What the stream's own kernels are made of, those of one file (kernels/FILE.cuh), those of a rule,
// those of another room (device/kernel_launch.h), and one that a room has for the host, too
// (device/kernel.h).
KernelSource stream_kernels(const std::string& file, int architecture);
KernelSource rule_kernels(const UpdateRule& rule, int architecture);
KernelSource other_kernels(const KernelText& text, int architecture);
KernelSource block_kernel(const BlockKernel& kernel, int architecture);

// The kernels of one GPU: compiled, or read from this user's cache, when they are first needed. Any
// number of threads may ask. The GPU's context is current in all calls.
class Kernels {
 public:
  explicit Kernels(int architecture) : architecture_(architecture) {}

  Function find(const std::string& file, const std::string& name);
  Function find(const UpdateRule& rule, const std::string& name);
  Function find(const KernelText& text, const std::string& name);
  Function find(const BlockKernel& kernel);

 private:
  template <class Source>
  Function find_in(const std::string& module, const std::string& name, const Source& make_source);

  int architecture_;
  std::mutex mutex_;
  std::map<std::string, Module> modules_;      // guarded by mutex_
  std::map<std::string, Function> functions_;  // by module and name; guarded by mutex_
};

}  // namespace trireme::device::cuda
