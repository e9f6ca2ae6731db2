#pragma once

#include <vector>

#include "device/buffer.h"
#include "parallel/memory/gradient_sums.h"

namespace trireme::detail {

// Note [groups of micro-batches]
// With InitOptions::sum_group = G the chain is over sums of G micro-batches. Where G divides the
// number of ranks, the communicator does that in every round. Where it is a multiple of it, as for
// one process that follows the order of a larger job, a group takes several rounds: the sums are
// then those of the group, and are added to these totals when it is complete.
class GroupTotals {
 public:
  GroupTotals(const PartContext& context, GradientSums& sums);

  // Takes the memory, where there is none yet.
  void make();
  // Adds the sums of a group, of the parameters that have any.
  void add(const std::vector<char>& in_sums);
  // The totals are what the step's sums are.
  void move_to_sums();
  // For the next step.
  void reset();

 private:
  struct Totals {
    device::Buffer memory;
    MemoryLedger::Charge charge;
  };
  Span run(std::size_t unit) const;

  PartContext context_;
  GradientSums& sums_;
  std::vector<Totals> units_;
  std::vector<char> in_totals_;  // by parameter: they hold something
};

}  // namespace trireme::detail
