#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/device.h"

namespace trireme::device {

// Gives this program the driver of a GPU, unless it has it. Throws ConfigError where there is no
// such GPU, none that can be used, or no driver of NVIDIA's at all.
void use_cuda(Device device);

// What is known of a GPU without using it.
struct GpuFacts {
  std::string name;      // "NVIDIA H200"
  std::string identity;  // as Driver::identity has it
  std::uint64_t memory_bytes = 0;
  int architecture = 0;  // 90 for compute capability 9.0
  int processors = 0;
  bool shares_memory = false;  // between processes, by descriptors
};

struct GpuReport {
  std::vector<GpuFacts> gpus{};
  bool has_driver = false;  // NVIDIA's, of whatever age and state
  std::string driver{};     // the newest CUDA that it can do: "13.0"; empty where there is none
  std::string compiler{};   // NVRTC's version; empty where it was not found
  std::string why_none{};   // where there are no GPUs
  std::string why_no_compiler{};
};

// Never throws for what is not there.
GpuReport examine_gpus();

}  // namespace trireme::device
