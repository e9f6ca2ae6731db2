#pragma once

#include <string>

#include "trireme/settings/train_settings.h"

namespace trireme {

// How many times as long a matrix product takes in a precision as in float32 on this processor; 1
// for float32. Measured, in a few milliseconds: a processor without instructions for 16 bits may be
// a hundred times slower with them, and no table knows them all.
double slowdown_of_precision(TrainPrecision precision);

// One line for a person; empty where 16 bits are worth it. LibTorch's own kernels for processors
// without such instructions cost up to two or three times; what is beyond is no fair price.
std::string slow_precision_warning(TrainPrecision precision, double slowdown);

}  // namespace trireme
