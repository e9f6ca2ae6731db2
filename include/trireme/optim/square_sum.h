#pragma once

#include "trireme/core/span.h"
#include "trireme/device/square_sum.h"

namespace trireme {

// The largest magnitude among elements of float32 or float64; infinity when one of them is not
// finite, which is how an overflow of half-precision training is found.
double largest_magnitude(const ConstSpan& data, const Scaling& scaling = {});
SquareSum sum_squares(const ConstSpan& data,
                      const SquareQuanta& quanta,
                      const Scaling& scaling = {});

// The factor that brings a gradient of norm `norm` down to `max_norm`, at most 1:
// max_norm / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_ has it: 0 for an infinite norm, NaN
// for one that is not a number.
double clip_factor(double norm, double max_norm);

}  // namespace trireme
