#pragma once

#include <cstdint>

#include "trireme/core/dtype.h"

namespace trireme {

// average = decay * average + (1 - decay) * values, element by element (the exponential moving
// average of weights). Both are `dtype`, float32 or float64.
void update_moving_average(
    Dtype dtype, void* average, const void* values, std::int64_t numel, double decay);

}  // namespace trireme
