#pragma once

#include <cstddef>

#include "trireme/checkpoint/tensor_source.h"

namespace trireme::detail {

// Whether two tensors of a source have the same type, shape and bits.
bool same_values(const TensorSource& source, std::size_t a, std::size_t b);

}  // namespace trireme::detail
