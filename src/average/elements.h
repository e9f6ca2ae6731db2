#pragma once

#include <cstddef>
#include <span>

#include "trireme/core/dtype.h"

// Elements of the types that are averaged, and the float64 that they are averaged in.

namespace trireme::detail {

// As many elements as `to` has are added to it.
void add_elements(Dtype dtype, const std::byte* from, std::span<double> to);
// Each is rounded once, to the nearest. (A 16-bit one by way of float32, as LibTorch does it.)
void round_elements(Dtype dtype, std::span<const double> from, std::byte* to);

}  // namespace trireme::detail
