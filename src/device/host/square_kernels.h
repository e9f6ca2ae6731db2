#pragma once

#include "trireme/core/span.h"
#include "trireme/device/square_sum.h"

namespace trireme::device {

// Of float32 or float64: the largest magnitude, infinity where an element is not finite; and the
// exact sum of squares.
double largest_magnitude(const ConstSpan& data, const Scaling& scaling);
SquareSum sum_squares(const ConstSpan& data, const SquareQuanta& quanta, const Scaling& scaling);

}  // namespace trireme::device
