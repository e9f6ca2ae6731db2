#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/operation.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// One rank's term of a reduction: where it begins, and which elements of the whole it leaves out.
struct Term {
  const std::byte* data;  // of the first element that is reduced
  const Range* absent;
  std::size_t absent_count;

  bool has(std::int64_t element) const;
  // Where the next stretch that is all there or all absent begins.
  std::int64_t next_change(std::int64_t element, std::int64_t end) const;
};

// A reduction of elements `range` of the whole in the one order that every backend follows
// (docs/collectives.md): terms in rank order, absent ones skipped; sums of floats in groups of
// `group` ranks first, where the job asks for that.
struct SumChain {
  Dtype dtype;         // of the terms
  Dtype output_dtype;  // of the outputs and the accumulator
  ReduceOp op;
  std::int64_t divisor;  // of kAverage: the number of ranks
  int group = 1;         // ranks whose terms are added up before the chain goes on with the sum
  Range range;
  std::span<const Term> terms;        // by rank
  const Term* accumulator = nullptr;  // the outputs' old value, where it is the first term
  std::span<std::byte* const> outputs;
};

// Elements that nobody has keep what the outputs had.
void reduce_in_order(const SumChain& chain);

// Ranges that are in all of `lists`, each of which ascends.
std::vector<Range> common_ranges(std::span<const std::span<const Range>> lists);

}  // namespace trireme::detail
