#include "doctor/gpu_check.h"

#include <algorithm>

#include "doctor/quantity.h"
#include "trireme/core/concat.h"

namespace trireme::detail {

Finding check_gpus(const device::GpuReport& report) {
  if (report.gpus.empty()) {
    Finding none{"GPUs", "none", {{"count", 0}}};
    if (report.has_driver) {
      none.value = "none that can be used";
      none.judge(Verdict::kWarning, report.why_none);
    }
    return none;
  }
  Finding finding{"GPUs",
                  concat("{}; driver for CUDA {}",
                         {listed(report.gpus,
                                 [](const device::GpuFacts& gpu) {
                                   return concat(
                                       "{} ({}, sm_{})",
                                       {gpu.name, bytes_text(gpu.memory_bytes), gpu.architecture});
                                 }),
                          report.driver}),
                  {{"count", static_cast<double>(report.gpus.size())},
                   {"memory_bytes", static_cast<double>(report.gpus.front().memory_bytes)}}};
  if (!report.compiler.empty()) {
    finding.value += concat(", NVRTC ", report.compiler);
  }
  if (!std::ranges::all_of(report.gpus, &device::GpuFacts::shares_memory)) {
    finding.judge(Verdict::kWarning,
                  "ranks cannot share a GPU's memory: use a driver, or a virtual machine, that has "
                  "memory handles as file descriptors (CUDA 11.2)");
  } else if (report.compiler.empty()) {
    finding.judge(Verdict::kNote,
                  "kernels cannot be compiled, since NVRTC was not found: install a LibTorch with "
                  "CUDA, or name its folder in LD_LIBRARY_PATH");
  }
  return finding;
}

}  // namespace trireme::detail
