#include "comm/order/operation.h"

#include "trireme/core/error.h"

namespace trireme {

std::string_view reduce_name(ReduceOp op) {
  constexpr std::string_view kNames[] = {"sum", "average", "min", "max"};
  return kNames[static_cast<int>(op)];
}

namespace detail {

std::string_view op_name(OpKind kind) {
  constexpr std::string_view kNames[] = {"barrier",
                                         "all_reduce",
                                         "reduce_scatter",
                                         "all_gather",
                                         "broadcast",
                                         "reduce",
                                         "gather",
                                         "scatter",
                                         "all_to_all",
                                         "send",
                                         "recv",
                                         "allocate",
                                         "neighbour_all_gather"};
  return kNames[static_cast<int>(kind)];
}

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter || kind == OpKind::kReduce;
}

bool has_root(OpKind kind) {
  return kind == OpKind::kBroadcast || kind == OpKind::kReduce || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

std::string describe(
    OpKind kind, ReduceOp reduce, Dtype dtype, std::int64_t total, int root, DeviceType device) {
  const char* const where = device == DeviceType::kHost ? "" : " on a GPU";
  if (kind == OpKind::kBarrier) {
    return "barrier()";
  }
  if (kind == OpKind::kAllocate) {
    return concat("allocate(", total, " bytes", where, ")");
  }
  std::string text = concat(op_name(kind), "(");
  if (reduces(kind)) {
    text += concat(reduce_name(reduce), ", ");
  }
  text += dtype_name(dtype);
  // A non-root of a gather or scatter cannot know the total.
  if (total >= 0) {
    text += concat(" x ", total);
  }
  if (has_root(kind)) {
    text += concat(", root ", root);
  }
  return text + where + ")";
}

CallFacts facts_of(const Operation& operation) {
  CallFacts facts{
      operation.kind, operation.reduce, operation.dtype, operation.root, operation.total};
  facts.device = operation.device.type;
  return facts;
}

}  // namespace detail
}  // namespace trireme
