#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "trireme/core/reduce_op.h"
#include "trireme/shard/range.h"

namespace trireme {

std::string_view reduce_name(ReduceOp op);

// Of SumTerms in one call.
inline constexpr std::size_t kMaxAbsentRanges = 1000;

// What besides the ranks' inputs decides the chain of a sum. Ranges are elements of the whole
// input, ascending and disjoint.
struct SumTerms {
  // What this rank leaves out: the chain continues with the next rank, nothing is added in its
  // place (+0.0 would change the sign of a -0.0). If every rank leaves an element out and nothing
  // was accumulated, reduce_scatter keeps what the output had; all_reduce leaves it undefined.
  std::vector<Range> absent{};
  // reduce_scatter: the output's old value is the first term of the chain ...
  bool accumulate = false;
  // ... except in these ranges, where it holds nothing yet.
  std::vector<Range> fresh{};
  // Ranks whose terms are added up first, then the sums of these groups; the same on all ranks. 0:
  // the communicator's (InitOptions::sum_group).
  int group = 0;
};

}  // namespace trireme
