#pragma once

#include "trireme/optim/parameter_slice.h"

// For rules whose direction is not a formula of one element: its beginning and its end, on vectors.

namespace trireme::detail {

// The slice's gradient as the update sees it, to memory of the slice's dtype and length.
void transformed_gradient(const ParameterSlice& slice,
                          const GradientTransform& transform,
                          void* gradient);

// parameter = shrink * parameter - rate * direction.
void apply_direction(const ParameterSlice& slice,
                     const void* direction,
                     double shrink,
                     double rate);

}  // namespace trireme::detail
