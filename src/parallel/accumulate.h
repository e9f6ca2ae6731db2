#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.h"

namespace trireme::detail {

// sums = gradient (`first`), or sums += gradient, in the sums' precision: a link of the chain that
// the collectives' sums are made of, with the same bits.
void accumulate(std::byte* sums,
                Dtype sum_dtype,
                const std::byte* gradient,
                Dtype dtype,
                std::int64_t numel,
                bool first);

}  // namespace trireme::detail
