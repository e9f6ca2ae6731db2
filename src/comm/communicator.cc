#include "trireme/comm/communicator.h"

#include <numeric>

#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using detail::index;

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

}  // namespace

std::unique_ptr<Window> Communicator::expose(const std::byte* /*data*/, std::size_t /*bytes*/) {
  throw ConfigError("expose: ranks of one machine read each other's memory in place: use allocate");
}

void Communicator::check_root(OpKind kind, int root) const {
  TRIREME_CHECK(root >= 0 && root < size(),
                op_name(kind),
                ": root ",
                root,
                " is outside the world of ",
                size(),
                " ranks: use 0 to ",
                size() - 1);
}

void Communicator::check_peer(OpKind kind, int peer) const {
  TRIREME_CHECK(peer >= 0 && peer < size(),
                op_name(kind),
                ": rank ",
                peer,
                " is outside the world of ",
                size(),
                " ranks: use 0 to ",
                size() - 1);
}

Counts Communicator::checked_counts(OpKind kind, Counts counts, std::int64_t total) const {
  if (counts.empty()) {
    return even_counts(total, size());
  }
  TRIREME_CHECK(static_cast<int>(counts.size()) == size(),
                op_name(kind),
                ": counts has ",
                counts.size(),
                " entries for ",
                size(),
                " ranks: give one for each");
  for (const std::int64_t count : counts) {
    TRIREME_CHECK(count >= 0, op_name(kind), ": counts cannot be negative, found ", count);
  }
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  TRIREME_CHECK(
      sum == total, op_name(kind), ": counts add up to ", sum, " elements, the data has ", total);
  return counts;
}

std::int64_t Communicator::agree_on_split(OpKind kind,
                                          bool at_root,
                                          std::int64_t numel_at_root,
                                          Counts* counts) const {
  if (!at_root && counts->empty()) {
    return -1;
  }
  const std::int64_t total =
      at_root ? numel_at_root : std::accumulate(counts->begin(), counts->end(), std::int64_t{0});
  *counts = checked_counts(kind, std::move(*counts), total);
  return total;
}

Work Communicator::submit_to(Communicator& other, Operation operation) {
  return other.submit(std::move(operation));
}

Work Communicator::all_reduce(const Span& data, ReduceOp op, SumTerms terms) {
  check_can_reduce(OpKind::kAllReduce, op, data.dtype());
  check_terms(OpKind::kAllReduce, op, terms, data.numel());
  TRIREME_CHECK(!terms.accumulate, "all_reduce: only reduce_scatter can accumulate");
  return submit({.kind = OpKind::kAllReduce,
                 .reduce = op,
                 .dtype = data.dtype(),
                 .input = data,
                 .output = data,
                 .counts = even_counts(data.numel(), size()),
                 .terms = std::move(terms),
                 .total = data.numel()});
}

Work Communicator::reduce_scatter(
    const ConstSpan& input, const Span& output, ReduceOp op, Counts counts, SumTerms terms) {
  constexpr auto kKind = OpKind::kReduceScatter;
  const bool widens = (input.dtype() == Dtype::kFloat16 || input.dtype() == Dtype::kBFloat16) &&
                      output.dtype() == Dtype::kFloat32 && op == ReduceOp::kSum;
  if (!widens) {
    check_same_dtype(kKind, input, output);
  }
  check_can_reduce(kKind, op, input.dtype());
  check_terms(kKind, op, terms, input.numel());
  const std::int64_t total = input.numel();
  counts = checked_counts(kKind, std::move(counts), total);
  check_numel(kKind, "output", counts[index(rank())], output.numel(), rank());
  return submit({.kind = kKind,
                 .reduce = op,
                 .dtype = input.dtype(),
                 .input = input,
                 .output = output,
                 .counts = std::move(counts),
                 .terms = std::move(terms),
                 .total = total});
}

Work Communicator::all_gather(const ConstSpan& input, const Span& output, Counts counts) {
  constexpr auto kKind = OpKind::kAllGather;
  check_same_dtype(kKind, input, output);
  const std::int64_t total = output.numel();
  counts = checked_counts(kKind, std::move(counts), total);
  check_numel(kKind, "input", counts[index(rank())], input.numel(), rank());
  return submit({.kind = kKind,
                 .dtype = input.dtype(),
                 .input = input,
                 .output = output,
                 .counts = std::move(counts),
                 .total = total});
}

Work Communicator::broadcast(const Span& data, int root) {
  check_root(OpKind::kBroadcast, root);
  return submit({.kind = OpKind::kBroadcast,
                 .dtype = data.dtype(),
                 .root = root,
                 .input = rank() == root ? ConstSpan(data) : ConstSpan(nullptr, 0, data.dtype()),
                 .output = data,
                 .total = data.numel()});
}

Work Communicator::reduce(const Span& data, int root, ReduceOp op) {
  check_can_reduce(OpKind::kReduce, op, data.dtype());
  check_root(OpKind::kReduce, root);
  return submit({.kind = OpKind::kReduce,
                 .reduce = op,
                 .dtype = data.dtype(),
                 .root = root,
                 .input = data,
                 .output = rank() == root ? data : Span(nullptr, 0, data.dtype()),
                 .counts = even_counts(data.numel(), size()),
                 .total = data.numel()});
}

Work Communicator::gather(const ConstSpan& input, const Span& output, int root, Counts counts) {
  constexpr auto kKind = OpKind::kGather;
  check_root(kKind, root);
  if (rank() == root) {
    check_same_dtype(kKind, input, output);
  }
  const std::int64_t total = agree_on_split(kKind, rank() == root, output.numel(), &counts);
  if (!counts.empty()) {
    check_numel(kKind, "input", counts[index(rank())], input.numel(), rank());
  }
  return submit({.kind = kKind,
                 .dtype = input.dtype(),
                 .root = root,
                 .input = input,
                 .output = rank() == root ? output : Span(nullptr, 0, input.dtype()),
                 .counts = std::move(counts),
                 .total = total});
}

Work Communicator::scatter(const ConstSpan& input, const Span& output, int root, Counts counts) {
  constexpr auto kKind = OpKind::kScatter;
  check_root(kKind, root);
  if (rank() == root) {
    check_same_dtype(kKind, input, output);
  }
  const std::int64_t total = agree_on_split(kKind, rank() == root, input.numel(), &counts);
  if (!counts.empty()) {
    check_numel(kKind, "output", counts[index(rank())], output.numel(), rank());
  }
  return submit({.kind = kKind,
                 .dtype = output.dtype(),
                 .root = root,
                 .input = rank() == root ? input : ConstSpan(nullptr, 0, output.dtype()),
                 .output = output,
                 .counts = std::move(counts),
                 .total = total});
}

Work Communicator::all_to_all(const ConstSpan& input, const Span& output, Counts send_counts) {
  constexpr auto kKind = OpKind::kAllToAll;
  check_same_dtype(kKind, input, output);
  const std::int64_t total = input.numel();
  send_counts = checked_counts(kKind, std::move(send_counts), total);
  return submit({.kind = kKind,
                 .dtype = input.dtype(),
                 .input = input,
                 .output = output,
                 .counts = std::move(send_counts),
                 .total = total});
}

Work Communicator::send(const ConstSpan& data, int to, int tag) {
  check_peer(OpKind::kSend, to);
  const std::int64_t total = data.numel();
  return submit({.kind = OpKind::kSend,
                 .dtype = data.dtype(),
                 .peer = to,
                 .tag = tag,
                 .input = data,
                 .total = total});
}

Work Communicator::recv(const Span& data, int from, int tag) {
  check_peer(OpKind::kRecv, from);
  const std::int64_t total = data.numel();
  return submit({.kind = OpKind::kRecv,
                 .dtype = data.dtype(),
                 .peer = from,
                 .tag = tag,
                 .output = data,
                 .total = total});
}

CommError Communicator::fail(const CommError& failure) {
  abort(failure.what());
  return failure;
}

Work Communicator::barrier() {
  return submit({.kind = OpKind::kBarrier});
}

}  // namespace trireme
