#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.h"

namespace trireme::device {

// Copies `numel` floats of any width and says whether all are finite, in one pass.
bool copy_finite(Dtype dtype, void* to, const void* from, std::int64_t numel);

// The same without the copy.
bool all_finite(Dtype dtype, const void* data, std::int64_t numel);

}  // namespace trireme::device
