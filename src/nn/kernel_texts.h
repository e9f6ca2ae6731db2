#pragma once

#include <span>

#include "device/update.h"

namespace trireme::nn {

// The kernels, as they are written: the build makes a table of them.
std::span<const device::SourceText> kernel_texts();

}  // namespace trireme::nn
