#pragma once

#include "device/cuda/cuda_driver.h"
#include "doctor/finding.h"

namespace trireme::detail {

// The GPUs of a machine, and whether they can be used.
Finding check_gpus(const device::GpuReport& report);

}  // namespace trireme::detail
