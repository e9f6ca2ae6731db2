#include "comm/api/argument_checks.h"

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

void check_ranges(OpKind kind, const std::vector<Range>& ranges, std::int64_t numel) {
  TRIREME_CHECK(ranges.size() <= kMaxAbsentRanges,
                "{}: at most {} absent ranges can be named in one call, found {}: join those that "
                "touch, or reduce in smaller parts",
                {op_name(kind), kMaxAbsentRanges, ranges.size()});
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    TRIREME_CHECK(range.begin >= end && range.end >= range.begin && range.end <= numel,
                  "{}: ranges must ascend inside [0, {}), found [{}, {})",
                  {op_name(kind), numel, range.begin, range.end});
    end = range.end;
  }
}

}  // namespace

Device device_of(OpKind kind, const ConstSpan& input, const ConstSpan& output) {
  if (input.numel() == 0 || output.numel() == 0) {
    return input.numel() > 0 ? input.device() : output.device();
  }
  TRIREME_CHECK(input.device() == output.device(),
                "{}: the input is on {} and the output on {}: give both the same device",
                {op_name(kind), device_name(input.device()), device_name(output.device())});
  return input.device();
}

void check_same_dtype(OpKind kind, const ConstSpan& input, const ConstSpan& output) {
  TRIREME_CHECK(input.dtype() == output.dtype(),
                "{}: input is {} and output is {}: give both the same dtype",
                {op_name(kind), dtype_name(input.dtype()), dtype_name(output.dtype())});
}

void check_numel(
    OpKind kind, const char* name, std::int64_t expected, std::int64_t found, int rank) {
  TRIREME_CHECK(expected == found,
                "{}: the {} of rank {} must have {} elements, found {}",
                {op_name(kind), name, rank, expected, found});
}

void check_can_reduce(OpKind kind, ReduceOp op, Dtype dtype) {
  TRIREME_CHECK(dtype != Dtype::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax,
                "{}: {} of bool would not be bool: use ReduceOp::kMin (all are true) or kMax (any "
                "is), or convert to an integer type first",
                {op_name(kind), reduce_name(op)});
}

void check_terms(OpKind kind, ReduceOp op, const SumTerms& terms, std::int64_t numel) {
  TRIREME_CHECK(op == ReduceOp::kSum || (terms.absent.empty() && !terms.accumulate),
                "{}: absent ranges and accumulation are for sums, found {}",
                {op_name(kind), reduce_name(op)});
  check_ranges(kind, terms.absent, numel);
  check_ranges(kind, terms.fresh, numel);
}

}  // namespace trireme::detail
