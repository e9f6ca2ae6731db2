#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/core/dtype.h"
#include "trireme/core/reduce_op.h"
#include "trireme/core/span.h"
#include "trireme/shard/range.h"

// What is added up, and in which order. Lists are read before a call returns; elements are read
// and written until an event that is recorded after it has passed.

namespace trireme::device {

// One rank's term of a reduction: where it begins, and which elements of the whole it leaves out.
struct Term {
  const std::byte* data;          // of the first element that is reduced
  const Range* absent = nullptr;  // ascending and disjoint
  std::size_t absent_count = 0;

  bool has(std::int64_t element) const;
  // Where the next stretch that is all there or all absent begins.
  std::int64_t next_change(std::int64_t element, std::int64_t end) const;
};

// A reduction of elements `range` of the whole in the one order that every backend follows
// (docs/collectives.md): terms in rank order, absent ones skipped; sums of floats in groups of
// `group` ranks first, where the job asks for that. Elements that nobody has keep what the outputs
// had. An output may be the memory of a term; other overlaps are not allowed. The result depends on
// the values alone: not on alignment, on where a range was cut, or on the device.
struct SumChain {
  Dtype dtype;  // of the terms
  // Of the outputs and the accumulator: the terms' own; or float32 where those are 16-bit floats,
  // and the sums are then not rounded; or a 16-bit float where those are float32, rounded once.
  Dtype output_dtype;
  ReduceOp op = ReduceOp::kSum;
  std::int64_t divisor = 1;  // of kAverage: the number of ranks
  int group = 1;             // ranks whose terms are added up before the chain goes on with the sum
  Range range;
  std::span<const Term> terms;        // by rank
  const Term* accumulator = nullptr;  // the outputs' old value, where it is the first term
  std::span<std::byte* const> outputs;
};

// Rows of a sparse gradient, added one after another to those elements of the dense sums that
// `range` keeps. A row may come several times: its terms are added in the order of the list.
struct RowSums {
  Span sums;  // elements `range` of the whole
  Range range;
  std::int64_t width = 0;              // elements of a row
  std::span<const std::int64_t> rows;  // which row of the whole each is
  ConstSpan values;  // row after row; 16-bit floats where the sums are float32, or as the sums
};

}  // namespace trireme::device
