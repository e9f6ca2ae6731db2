#pragma once

#include <string>
#include <vector>

namespace trireme {

// The GPUs that a machine has for training: with a driver, a LibTorch and kernels that can use
// them.
struct UsableGpus {
  std::vector<std::string> names{};  // "NVIDIA H200", in the order of their numbers
  std::string why_none{};            // where there are none
};
// How trireme-worker tells them: a line for each, or one that says why there are none.
inline constexpr char kGpuLine[] = "gpu: ";
inline constexpr char kNoGpuLine[] = "no gpu: ";

}  // namespace trireme
