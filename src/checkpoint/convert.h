#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/core/dtype.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// Whether values of one type can become values of the other: equal types, or both floating-point.
bool can_convert(Dtype from, Dtype to);

// To another floating-point type, rounded to nearest with ties to even.
void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, std::int64_t numel);

// Elements of a tensor in another memory order: `in` holds all of them as `from` strides say, `out`
// gets those of `range` as they follow each other under `to` strides. Empty strides: row by row.
void reorder(const std::vector<std::int64_t>& shape,
             std::size_t element_bytes,
             const std::vector<std::int64_t>& from,
             const std::byte* in,
             const std::vector<std::int64_t>& to,
             Range range,
             std::byte* out);

// Whether both put the elements of this shape in the same order.
bool same_order(const std::vector<std::int64_t>& shape,
                const std::vector<std::int64_t>& a,
                const std::vector<std::int64_t>& b);

}  // namespace trireme::detail
