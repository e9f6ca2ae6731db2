#pragma once

#include <span>

#include "device/update.h"

namespace trireme::device::cuda {

// The kernels, as they are written: the build makes a table of them.
std::span<const SourceText> kernel_texts();

}  // namespace trireme::device::cuda
