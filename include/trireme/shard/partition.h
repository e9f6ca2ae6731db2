#pragma once

#include <cstdint>
#include <vector>

#include "trireme/shard/flat_layout.h"
#include "trireme/shard/range.h"

// Which rank owns which part of a flat buffer. Every strategy gives one contiguous range per rank,
// in rank order, that together cover the buffer once; a rank's range may be empty. Ranges are cut
// at multiples of 64 bytes, so that no two ranks ever write to one cache line.

namespace trireme {

// Equal parts, to within one cut: exact balance, parameters may be split anywhere.
std::vector<Range> partition_by_element(const FlatLayout& layout, int world);

// Parts in proportion to `weights` (one per rank, not negative, not all zero), for ranks of
// different speed or memory.
std::vector<Range> partition_by_weight(const FlatLayout& layout,
                                       const std::vector<double>& weights);

// Whole parameters only, as balanced as contiguous groups can be: the largest part is as small as
// possible.
std::vector<Range> partition_by_layer(const FlatLayout& layout, int world);

// A partition whose cuts were moved to the nearest border between rows: `row_numels` has the
// elements of one row of each parameter, whose last one may be shorter. A row that is not a
// multiple of 64 bytes moves its cut to the next cache line inside it.
std::vector<Range> moved_to_rows(const FlatLayout& layout,
                                 const std::vector<Range>& ranges,
                                 const std::vector<std::int64_t>& row_numels);

// As by element, but parameters are split only between rows (the product of all dimensions but the
// first).
std::vector<Range> partition_by_dimension(const FlatLayout& layout,
                                          const std::vector<std::int64_t>& row_numels,
                                          int world);

}  // namespace trireme
