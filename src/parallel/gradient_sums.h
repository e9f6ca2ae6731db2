#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "parallel/unit.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/host_memory.h"
#include "trireme/core/memory_ledger.h"
#include "trireme/parallel/options.h"

namespace trireme::detail {

// Where the sums of a step's gradients are, by unit. DDP and stage 1 keep whole gradients, of which
// this rank's range becomes sums; the others keep that range.
//
// Note [groups of micro-batches]
// With InitOptions::sum_group = G the chain is over sums of G micro-batches. Where G divides the
// number of ranks, the communicator does that in every round. Where it is a multiple of it, as for
// one process that follows the order of a larger job, a group takes several rounds: the sums are
// then those of the group, and are added to the totals when it is complete.
class GradientSums {
 public:
  // `owners`: those that the units are divided among, the ranks or those of a machine.
  GradientSums(const std::vector<Unit>& units,
               const EngineOptions& options,
               Communicator& ranks,
               Communicator& owners,
               MemoryLedger& ledger);

  Range mine(std::size_t unit) const;
  // Where element `element` of a unit is, of those that are kept here.
  std::byte* at(std::size_t unit, std::int64_t element) const;
  // The sums of a part of a parameter that is inside one rank's range: this rank's, and with DDP,
  // where everyone updates everything, anyone's, read where it is.
  const std::byte* anyones(std::size_t unit, const Piece& piece) const;
  // DDP on one machine: the others' sums are read where they are.
  bool reads_peers() const { return reads_peers_; }
  // Whole gradients of this rank, for SumOrder::kLocalFirst at stages 2 and 3.
  std::byte* local(std::size_t unit, std::int64_t element) const;
  // What keeps a unit's sums, and its local gradients, alive: operations may outlive this.
  std::shared_ptr<const void> owner(std::size_t unit) const;
  std::shared_ptr<const void> local_owner(std::size_t unit) const;

  // Makes the sums whole in this rank's memory. Collective.
  void gather_whole();

  // --- see Note [groups of micro-batches]

  // Memory for totals, where there is none yet.
  void make_totals();
  // Adds the sums of the parameters that have any to the totals.
  void add_to_totals(const std::vector<char>& accumulated);
  // The totals are what the step's sums are. By parameter, whether they hold something.
  const std::vector<char>& take_totals();
  // For the next step.
  void reset();

 private:
  struct Sums {
    SharedBuffer shared;
    std::shared_ptr<HostMemory> own;
    std::byte* data = nullptr;
    std::int64_t first = 0;  // the element at `data`
    SharedBuffer local;
    HostMemory totals;  // of the groups before this one
    std::vector<MemoryLedger::Charge> charges;
  };

  const std::vector<Unit>& units_;
  Communicator& ranks_;
  Communicator& owners_;
  MemoryLedger& ledger_;
  const bool reads_peers_;
  std::vector<Sums> sums_;       // by unit
  std::vector<char> in_totals_;  // by parameter
  bool whole_ = false;
};

}  // namespace trireme::detail
