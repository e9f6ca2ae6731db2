#pragma once

#include <span>

#include "device/update.h"

namespace trireme::detail {

// The formulas of src/optim/formulas, as they are written: the build makes a table of them.
std::span<const device::SourceText> formula_texts();
// And the kernels of src/optim/kernels (device/kernel.h).
std::span<const device::SourceText> kernel_texts();

}  // namespace trireme::detail
