#pragma once

#include <string>

#include "trireme/data/dataset.h"

namespace trireme::detail {

// Says where numbers to predict are so large, so small or so far from 0 that the defaults learn
// them slowly or not at all: a model begins with outputs of about 1. Empty where they are not, and
// where there are classes or tokens. Reads some of the samples.
std::string unusual_target_scale(const Dataset& data);

}  // namespace trireme::detail
