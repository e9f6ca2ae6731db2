#include <numeric>
#include <span>
#include <utility>

#include "comm/algo/channel.h"
#include "comm/hierarchy/hierarchical_collectives.h"
#include "comm/order/matching.h"
#include "device/stream.h"
#include "trireme/core/index.h"

// all_reduce and reduce_scatter of Note [hierarchy].

namespace trireme::detail {
namespace {

// The ranges' parts inside `window`, counted from `origin` instead of window.begin.
std::vector<Range> clipped(std::span<const Range> ranges, Range window, std::int64_t origin) {
  std::vector<Range> result;
  for (const Range& range : ranges) {
    const Range inside = intersection(range, window);
    if (!inside.empty()) {
      result.push_back({inside.begin - window.begin + origin, inside.end - window.begin + origin});
    }
  }
  return result;
}

std::vector<std::span<const Range>> views(const std::vector<std::vector<Range>>& lists) {
  return {lists.begin(), lists.end()};
}

// Sums of 16-bit floats travel in float32.
Dtype sum_dtype(const Operation& op) {
  const bool sums = op.reduce == ReduceOp::kSum || op.reduce == ReduceOp::kAverage;
  return sums && is_half(op.dtype) ? Dtype::kFloat32 : op.dtype;
}

ReduceOp without_division(ReduceOp op) {
  return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
}

// The division of an average, and the rounding to the type of the result.
void finish(
    const Operation& op, int ranks, std::byte* sums, std::int64_t numel, std::byte* result) {
  const Dtype wide = sum_dtype(op);
  const Dtype dtype = result == sums ? wide : op.dtype;
  if (op.reduce != ReduceOp::kAverage) {
    device::host().copy({result, numel, dtype}, {sums, numel, wide});
    return;
  }
  const device::Term sum{sums};
  device::host().reduce({.dtype = wide,
                         .output_dtype = dtype,
                         .op = ReduceOp::kAverage,
                         .divisor = ranks,
                         .range = {0, numel},
                         .terms = std::span(&sum, 1),
                         .outputs = std::span(&result, 1)});
}

}  // namespace

bool HierarchicalCollectives::adds_up_by_machine(const Operation& op) const {
  if (op.reduce == ReduceOp::kMin || op.reduce == ReduceOp::kMax) {
    return true;
  }
  if (!is_float(op.dtype)) {
    return op.reduce == ReduceOp::kSum;  // an average divides what has not wrapped around
  }
  return (op.terms.group > 0 ? op.terms.group : sum_group_) == grid_.ranks_per_machine;
}

Steps HierarchicalCollectives::all_reduce(const Operation& op, std::uint32_t sequence) {
  std::vector<std::vector<Range>> absent;
  co_await Part(agree_inside(op, sequence, &absent));
  const Counts parts = even_counts(op.total, grid_.ranks_per_machine);
  const Range mine = even_range(op.total, grid_.ranks_per_machine, grid_.local);
  const Dtype wide = sum_dtype(op);
  std::byte* own = op.output.bytes() + static_cast<std::size_t>(mine.begin) * dtype_bytes(op.dtype);
  std::vector<std::byte> scratch;
  std::byte* sums = own;
  if (wide != op.dtype) {
    scratch.resize(static_cast<std::size_t>(mine.size()) * dtype_bytes(wide));
    sums = scratch.data();
  }
  Operation local;
  local.kind = OpKind::kReduceScatter;
  local.reduce = without_division(op.reduce);
  local.dtype = op.dtype;
  local.total = op.total;
  local.counts = parts;
  local.terms.absent = op.terms.absent;
  local.input = op.input;
  local.output = Span(sums, mine.size(), wide);
  co_await inside(std::move(local));
  Operation column;
  column.kind = OpKind::kAllReduce;
  column.reduce = without_division(op.reduce);
  column.dtype = wide;
  column.total = mine.size();
  column.counts = even_counts(mine.size(), grid_.machines);
  column.terms.absent = clipped(common_ranges(views(absent)), mine, 0);
  column.output = Span(sums, mine.size(), wide);
  column.input = column.output;
  co_await between(std::move(column), op);
  finish(op, grid_.size(), sums, mine.size(), own);
  if (grid_.ranks_per_machine == 1) {
    co_return;
  }
  Operation gather;
  gather.kind = OpKind::kAllGather;
  gather.dtype = op.dtype;
  gather.total = op.total;
  gather.counts = parts;
  gather.input = ConstSpan(own, mine.size(), op.dtype);
  gather.output = op.output;
  co_await inside(std::move(gather));
}

Steps HierarchicalCollectives::reduce_scatter(const Operation& op, std::uint32_t sequence) {
  std::vector<std::vector<Range>> absent;
  co_await Part(agree_inside(op, sequence, &absent));
  const std::vector<Range> nobodys = common_ranges(views(absent));
  const std::size_t element = dtype_bytes(op.dtype);
  const Dtype wide = sum_dtype(op);
  // This column's sums of this machine, machine after machine, as the column will add them up.
  Counts column_counts;
  column_counts.reserve(index(grid_.machines));
  for (int other = 0; other < grid_.machines; ++other) {
    column_counts.push_back(op.counts[index(grid_.counterpart(other))]);
  }
  const std::int64_t column_total =
      std::accumulate(column_counts.begin(), column_counts.end(), std::int64_t{0});
  const auto sums = std::make_unique_for_overwrite<std::byte[]>(
      static_cast<std::size_t>(column_total) * dtype_bytes(wide));
  SumTerms terms;
  std::int64_t at = 0;
  for (int other = 0; other < grid_.machines; ++other) {
    const int first = grid_.first_rank(other);
    Operation local;
    local.kind = OpKind::kReduceScatter;
    local.reduce = without_division(op.reduce);
    local.dtype = op.dtype;
    local.counts = counts_of(op, other);
    local.total = std::accumulate(local.counts.begin(), local.counts.end(), std::int64_t{0});
    const Range region{sum_before(op.counts.data(), first),
                       sum_before(op.counts.data(), first) + local.total};
    local.terms.absent = clipped(op.terms.absent, region, 0);
    local.input = ConstSpan(
        op.input.bytes() + static_cast<std::size_t>(region.begin) * element, local.total, op.dtype);
    const std::int64_t count = column_counts[index(other)];
    local.output = Span(sums.get() + static_cast<std::size_t>(at) * dtype_bytes(wide), count, wide);
    const std::int64_t mine = sum_before(op.counts.data(), first + grid_.local);
    const auto without = clipped(nobodys, {mine, mine + count}, at);
    terms.absent.insert(terms.absent.end(), without.begin(), without.end());
    if (other == grid_.node) {
      terms.fresh = clipped(op.terms.fresh, {mine, mine + count}, at);
    }
    co_await inside(std::move(local));
    at += count;
  }
  terms.accumulate = op.terms.accumulate;
  const bool straight = op.output.dtype() == wide;
  std::vector<std::byte> scratch;
  if (!straight) {
    // A sum that nobody contributes to keeps what the output had, also through the wider type.
    scratch.resize(static_cast<std::size_t>(op.output.numel()) * dtype_bytes(wide));
    device::host().copy({scratch.data(), op.output.numel(), wide}, op.output);
  }
  Operation column;
  column.kind = OpKind::kReduceScatter;
  column.reduce = without_division(op.reduce);
  column.dtype = wide;
  column.total = column_total;
  column.counts = std::move(column_counts);
  column.terms = std::move(terms);
  column.input = ConstSpan(sums.get(), column_total, wide);
  column.output = Span(straight ? op.output.bytes() : scratch.data(), op.output.numel(), wide);
  const Span result = column.output;
  co_await between(std::move(column), op);
  finish(op, grid_.size(), result.bytes(), op.output.numel(), op.output.bytes());
}

}  // namespace trireme::detail
