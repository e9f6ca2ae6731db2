#pragma once

#include <cstdint>

#include "trireme/data/loader.h"

namespace trireme::detail {

// Throws ConfigError where samples of this shape cannot be changed like that.
void check_augmentation(const Augmentation& augmentation, const SampleShape& shape);

// Changes the batch's samples in place. `background`: of each channel, or empty for 0. `first` is
// the place in the run of its first sample.
void augment(const Augmentation& augmentation,
             const SampleShape& shape,
             const std::vector<float>& background,
             std::uint64_t seed,
             std::int64_t first,
             Batch& batch);

}  // namespace trireme::detail
