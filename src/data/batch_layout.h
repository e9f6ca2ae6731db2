#pragma once

#include <cstdint>
#include <span>

#include "trireme/data/dataset.h"

namespace trireme::detail {

// Makes `batch` one of these samples of a dataset of `size` samples: ids are set, the vectors of
// the shape's kind have their lengths (kSparse: empty rows) with contents still to be written, the
// others are empty. What was allocated is kept. Throws ConfigError for a sample that does not
// exist.
void lay_out(Batch& batch,
             const SampleShape& shape,
             std::span<const std::int64_t> samples,
             std::int64_t size);

void check_sample(std::int64_t sample, std::int64_t size);

}  // namespace trireme::detail
