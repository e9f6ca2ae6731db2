#pragma once

#include <cstdint>

#include "comm/order/operation.h"
#include "trireme/core/span.h"

// What a rank can tell of its own arguments, before anything is issued. All throw ConfigError.

namespace trireme::detail {

// Where the data of a call is: all of it on one device.
Device device_of(OpKind kind, const ConstSpan& input, const ConstSpan& output);
void check_same_dtype(OpKind kind, const ConstSpan& input, const ConstSpan& output);
// `name`: "input" or "output" of `rank`.
void check_numel(
    OpKind kind, const char* name, std::int64_t expected, std::int64_t found, int rank);
void check_can_reduce(OpKind kind, ReduceOp op, Dtype dtype);
void check_terms(OpKind kind, ReduceOp op, const SumTerms& terms, std::int64_t numel);

}  // namespace trireme::detail
