#include "comm/api/argument_checks.h"

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

void check_ranges(OpKind kind, const std::vector<Range>& ranges, std::int64_t numel) {
  TRIREME_CHECK(ranges.size() <= kMaxAbsentRanges,
                op_name(kind),
                ": at most ",
                kMaxAbsentRanges,
                " absent ranges can be named in one call, found ",
                ranges.size(),
                ": join those that touch, or reduce in smaller parts");
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    TRIREME_CHECK(range.begin >= end && range.end >= range.begin && range.end <= numel,
                  op_name(kind),
                  ": ranges must ascend inside [0, ",
                  numel,
                  "), found [",
                  range.begin,
                  ", ",
                  range.end,
                  ")");
    end = range.end;
  }
}

}  // namespace

void check_device(OpKind kind, const ConstSpan& data) {
  TRIREME_CHECK(data.device().is_host(),
                op_name(kind),
                ": memory of ",
                device_name(data.device()),
                " cannot be communicated: copy it to the host first");
}

void check_same_dtype(OpKind kind, const ConstSpan& input, const ConstSpan& output) {
  TRIREME_CHECK(input.dtype() == output.dtype(),
                op_name(kind),
                ": input is ",
                dtype_name(input.dtype()),
                " and output is ",
                dtype_name(output.dtype()),
                ": give both the same dtype");
}

void check_numel(
    OpKind kind, const char* name, std::int64_t expected, std::int64_t found, int rank) {
  TRIREME_CHECK(expected == found,
                op_name(kind),
                ": the ",
                name,
                " of rank ",
                rank,
                " must have ",
                expected,
                " elements, found ",
                found);
}

void check_can_reduce(OpKind kind, ReduceOp op, Dtype dtype) {
  TRIREME_CHECK(dtype != Dtype::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax,
                op_name(kind),
                ": ",
                reduce_name(op),
                " of bool would not be bool: use ReduceOp::kMin (all are true) or kMax (any is), "
                "or convert to an integer type first");
}

void check_terms(OpKind kind, ReduceOp op, const SumTerms& terms, std::int64_t numel) {
  TRIREME_CHECK(op == ReduceOp::kSum || (terms.absent.empty() && !terms.accumulate),
                op_name(kind),
                ": absent ranges and accumulation are for sums, found ",
                reduce_name(op));
  check_ranges(kind, terms.absent, numel);
  check_ranges(kind, terms.fresh, numel);
}

}  // namespace trireme::detail
