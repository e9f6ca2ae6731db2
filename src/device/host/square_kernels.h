#pragma once

#include <cstddef>

#include "trireme/core/dtype.h"
#include "trireme/device/square_sum.h"

namespace trireme::device {

// Of float32 or float64: the largest magnitude, infinity where an element is not finite; and the
// exact sum of squares.
double largest_magnitude(Dtype dtype, const void* data, std::size_t numel, const Scaling& scaling);
SquareSum sum_squares(Dtype dtype,
                      const void* data,
                      std::size_t numel,
                      const SquareQuanta& quanta,
                      const Scaling& scaling);

}  // namespace trireme::device
