#pragma once

#include <functional>
#include <string>

#include "device/cuda/kernel_compiler.h"

namespace trireme::device::cuda {

// Machine code of kernels in files of this user, by everything that it was made of. A file that is
// cut, damaged or foreign is made anew; where there is no folder to write to, nothing is kept.
class KernelCache {
 public:
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}
  // In $XDG_CACHE_HOME/trireme, or else ~/.cache/trireme; in no folder where neither is set.
  static KernelCache of_this_user();

  // What `compile` makes, unless it has been made before of the same `ingredients`.
  std::string get(const std::string& ingredients,
                  const std::function<std::string()>& compile) const;
  // Where it is kept; empty where nothing is.
  std::string file_of(const std::string& ingredients) const;

 private:
  std::string folder_;  // empty: none
};

// All that the machine code of `source` depends on.
std::string ingredients_of(const KernelSource& source, const std::string& compiler_version);

}  // namespace trireme::device::cuda
