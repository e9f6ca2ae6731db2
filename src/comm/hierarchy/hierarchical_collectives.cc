#include "comm/hierarchy/hierarchical_collectives.h"

#include <numeric>
#include <utility>

#include "comm/algo/channel.h"
#include "comm/order/matching.h"
#include "trireme/core/index.h"

// Note [hierarchy]
// With M machines of L ranks each, rank m * L + j is number j of machine m. The numbers j of all
// machines are a column, with a communicator of their own (`between_`).
//
//   all_reduce      add up inside a machine, each rank a part; the columns add up their parts; put
//                   the parts together inside the machine
//   reduce_scatter  for each machine, add up inside what its ranks will own; the columns add those
//   all_gather      the columns exchange what they have; put it together inside the machine
//   broadcast       down the root's column, then inside each machine
//
// Sums made that way have the order of sum_group = L: machine by machine. With another group, sums
// of floats are made by all ranks directly (`flat_`), where every owner has every term. What is not
// worth a hierarchy (gather, scatter, all_to_all, messages) goes there as well.

namespace trireme::detail {
namespace {

// What a rank of a machine tells the others of its call.
struct FactsInside {
  OpKind kind;
  ReduceOp reduce;
  Dtype dtype;
  std::uint8_t unused;
  std::int32_t root;
  std::int64_t total;
  std::int64_t absent;
};

CallFacts call_of(const FactsInside& facts) {
  return {facts.kind, facts.reduce, facts.dtype, facts.root, facts.total};
}

Operation gather_of_bytes(const void* mine, std::size_t bytes, void* all, Counts counts) {
  Operation op;
  op.kind = OpKind::kAllGather;
  op.dtype = Dtype::kUint8;
  op.total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  op.input = ConstSpan(mine, static_cast<std::int64_t>(bytes), Dtype::kUint8);
  op.output = Span(all, op.total, Dtype::kUint8);
  op.counts = std::move(counts);
  return op;
}

Operation barrier_of() {
  Operation op;
  op.kind = OpKind::kBarrier;
  return op;
}

}  // namespace

Steps run_flat(OperationQueue& flat, const Operation& op) {
  Operation copy = op;
  PartDone whole(flat.issue(std::move(copy)), [](int rank) { return rank; });
  co_await AllPosted();  // the rest is in the order of that queue
  co_await whole;
}

Steps HierarchicalCollectives::run(const Operation& op, std::uint32_t sequence) {
  switch (op.kind) {
    case OpKind::kBarrier:
      return barrier(op, sequence);
    case OpKind::kAllReduce:
      return adds_up_by_machine(op) ? all_reduce(op, sequence) : directly(op, sequence);
    case OpKind::kReduceScatter:
      return adds_up_by_machine(op) ? reduce_scatter(op, sequence) : directly(op, sequence);
    case OpKind::kAllGather:
      return all_gather(op, sequence);
    case OpKind::kBroadcast:
      return broadcast(op, sequence);
    case OpKind::kSend:
    case OpKind::kRecv:
      return run_flat(flat_, op);
    default:
      return directly(op, sequence);
  }
}

// Ranks that make another call, one that goes through the hierarchy, wait for this one there, and
// would not hear of it from `flat_`.
Steps HierarchicalCollectives::directly(const Operation& op, std::uint32_t sequence) {
  Operation copy = op;
  PartDone whole(flat_.issue(std::move(copy)), [](int rank) { return rank; });
  PartDone column = between(barrier_of(), op);
  Part inside_too(agree_inside(op, sequence, nullptr));
  co_await inside_too;
  co_await column;
  co_await AllPosted();  // the rest is in the order of `flat_`
  co_await whole;
}

// --- parts of an operation

PartDone HierarchicalCollectives::inside(Operation part) {
  return PartDone(
      inside_.issue(std::move(part)),
      [first = grid_.first_rank(grid_.node)](int rank) { return first + rank; },
      [this](int rank) { return flat_.backend().name(rank); });
}

PartDone HierarchicalCollectives::between(Operation part, const Operation& whole) {
  part.whole = facts_of(whole);
  return PartDone(between_.issue(std::move(part)), rank_of_column());
}

std::unique_ptr<PartDone> HierarchicalCollectives::message(Operation part) {
  return std::make_unique<PartDone>(between_.issue(std::move(part)), rank_of_column());
}

std::function<int(int)> HierarchicalCollectives::rank_of_column() const {
  return [grid = grid_](int machine) { return grid.counterpart(machine); };
}

Steps HierarchicalCollectives::agree_inside(const Operation& op,
                                            std::uint32_t sequence,
                                            std::vector<std::vector<Range>>* absent) {
  const FactsInside mine{op.kind,
                         op.reduce,
                         op.dtype,
                         0,
                         op.root,
                         op.total,
                         static_cast<std::int64_t>(op.terms.absent.size())};
  std::vector<FactsInside> all(index(grid_.ranks_per_machine));
  Counts counts(all.size(), static_cast<std::int64_t>(sizeof(mine)));
  co_await inside(gather_of_bytes(&mine, sizeof(mine), all.data(), counts));
  std::int64_t ranges = 0;
  for (int peer = 0; peer < grid_.ranks_per_machine; ++peer) {
    const FactsInside& theirs = all[index(peer)];
    check_same_call(sequence,
                    0,
                    grid_.rank(),
                    call_of(mine),
                    grid_.first_rank(grid_.node) + peer,
                    call_of(theirs),
                    [&](int rank) { return flat_.backend().name(rank); });
    counts[index(peer)] = theirs.absent * static_cast<std::int64_t>(sizeof(Range));
    ranges += theirs.absent;
  }
  if (absent == nullptr || ranges == 0) {
    co_return;
  }
  std::vector<Range> lists(static_cast<std::size_t>(ranges));
  co_await inside(gather_of_bytes(
      op.terms.absent.data(), op.terms.absent.size() * sizeof(Range), lists.data(), counts));
  auto at = lists.begin();
  for (const FactsInside& facts : all) {
    absent->emplace_back(at, at + facts.absent);
    at += facts.absent;
  }
}

Counts HierarchicalCollectives::counts_of(const Operation& op, int machine) const {
  const auto first = op.counts.begin() + grid_.first_rank(machine);
  return {first, first + grid_.ranks_per_machine};
}

// --- operations; those that add up are in hierarchical_reductions.cc

Steps HierarchicalCollectives::barrier(const Operation& op, std::uint32_t sequence) {
  co_await Part(agree_inside(op, sequence, nullptr));
  co_await between(barrier_of(), op);
  if (grid_.ranks_per_machine > 1) {
    co_await inside(barrier_of());
  }
}

Steps HierarchicalCollectives::broadcast(const Operation& op, std::uint32_t sequence) {
  co_await Part(agree_inside(op, sequence, nullptr));
  const int root_node = op.root / grid_.ranks_per_machine;
  const int root_local = op.root % grid_.ranks_per_machine;
  const Span data = grid_.rank() == op.root
                        ? Span(const_cast<std::byte*>(op.input.bytes()), op.total, op.dtype)
                        : op.output;
  const auto from = [&](int root, int self) {
    return Operation{.kind = OpKind::kBroadcast,
                     .dtype = op.dtype,
                     .root = root,
                     .input = self == root ? ConstSpan(data) : ConstSpan(),
                     .output = self == root ? Span() : data,
                     .total = op.total};
  };
  // The root's whole column has it first.
  if (grid_.local == root_local) {
    co_await between(from(root_node, grid_.node), op);
  } else {
    co_await between(barrier_of(), op);
  }
  if (grid_.ranks_per_machine > 1) {
    co_await inside(from(root_local, grid_.local));
  }
}

Steps HierarchicalCollectives::all_gather(const Operation& op, std::uint32_t sequence) {
  co_await Part(agree_inside(op, sequence, nullptr));
  const auto parts = [&](int rank, std::int64_t numel) {
    return op.output.part(sum_before(op.counts.data(), rank), numel);
  };
  // Checks that the machines make the same call; the data does not wait for it.
  PartDone same = between(barrier_of(), op);
  std::vector<std::unique_ptr<PartDone>> arriving(index(grid_.machines));
  std::vector<std::unique_ptr<PartDone>> leaving;
  for (int step = 1; step < grid_.machines; ++step) {
    const int other = (grid_.node + step) % grid_.machines;
    const int from = grid_.counterpart(other);
    arriving[index(other)] = message({.kind = OpKind::kRecv,
                                      .dtype = op.dtype,
                                      .peer = other,
                                      .output = parts(from, op.counts[index(from)]),
                                      .total = op.counts[index(from)]});
    leaving.push_back(message({.kind = OpKind::kSend,
                               .dtype = op.dtype,
                               .peer = other,
                               .input = op.input,
                               .total = op.input.numel()}));
  }
  for (int step = 0; step < grid_.machines; ++step) {
    const int other = (grid_.node + step) % grid_.machines;
    if (arriving[index(other)]) {
      co_await *arriving[index(other)];
    }
    Operation local;
    local.kind = OpKind::kAllGather;
    local.dtype = op.dtype;
    local.counts = counts_of(op, other);
    local.total = std::accumulate(local.counts.begin(), local.counts.end(), std::int64_t{0});
    const int mine = grid_.counterpart(other);
    local.input = other == grid_.node ? op.input : parts(mine, op.counts[index(mine)]);
    local.output = parts(grid_.first_rank(other), local.total);
    co_await inside(std::move(local));
  }
  for (auto& work : leaving) {
    co_await *work;
  }
  co_await same;
}

}  // namespace trireme::detail
