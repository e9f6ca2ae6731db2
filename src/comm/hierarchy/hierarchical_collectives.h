#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/hierarchy/part_done.h"
#include "comm/queue/operation_queue.h"
#include "comm/queue/steps.h"

namespace trireme::detail {

// Machines of as many ranks each, and where among them this rank is.
struct MachineGrid {
  int machines;
  int ranks_per_machine;
  int node;   // this rank's machine
  int local;  // its number there

  int first_rank(int machine) const { return machine * ranks_per_machine; }
  // Of the rank with this one's number.
  int counterpart(int machine) const { return first_rank(machine) + local; }
  int rank() const { return counterpart(node); }
  int size() const { return first_rank(machines); }
};

// The collectives of several machines, made of collectives inside a machine and between machines:
// Note [hierarchy]. What they are made of belongs to the owner and outlives the steps.
class HierarchicalCollectives {
 public:
  // `inside`: the ranks of this machine. `between`: this rank's column. `flat`: all ranks. Parts of
  // one communicator (QueueOptions::part).
  // `sum_group`: of sums whose call names no other.
  HierarchicalCollectives(const MachineGrid& grid,
                          int sum_group,
                          OperationQueue& inside,
                          OperationQueue& between,
                          OperationQueue& flat)
      : grid_(grid), sum_group_(sum_group), inside_(inside), between_(between), flat_(flat) {}

  // The steps of an operation, number `sequence` of the whole. `op` outlives them.
  Steps run(const Operation& op, std::uint32_t sequence);

 private:
  // By all ranks of the world, without a hierarchy.
  Steps directly(const Operation& op, std::uint32_t sequence);
  Steps barrier(const Operation& op, std::uint32_t sequence);
  Steps broadcast(const Operation& op, std::uint32_t sequence);
  Steps all_gather(const Operation& op, std::uint32_t sequence);
  Steps all_reduce(const Operation& op, std::uint32_t sequence);
  Steps reduce_scatter(const Operation& op, std::uint32_t sequence);

  // Whether the order of its sum is the hierarchy's, or does not matter.
  bool adds_up_by_machine(const Operation& op) const;

  // All ranks of this machine make the same call; and what each leaves out of a sum.
  Steps agree_inside(const Operation& op,
                     std::uint32_t sequence,
                     std::vector<std::vector<Range>>* absent);

  // A part of an operation, and of the `whole`.
  PartDone inside(Operation part);
  PartDone between(Operation part, const Operation& whole);
  // A message to or from another rank of the column.
  std::unique_ptr<PartDone> message(Operation part);
  std::function<int(int)> rank_of_column() const;

  // What the ranks of a machine have of the whole.
  Counts counts_of(const Operation& op, int machine) const;

  const MachineGrid grid_;
  const int sum_group_;
  OperationQueue& inside_;
  OperationQueue& between_;
  OperationQueue& flat_;
};

// The operation as it is, by all ranks of the world directly. `op` outlives the steps.
Steps run_flat(OperationQueue& flat, const Operation& op);

}  // namespace trireme::detail
