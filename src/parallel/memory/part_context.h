#pragma once

#include <memory>

#include "parallel/model/model_plan.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"

namespace trireme {
struct SparseUse;
}

namespace trireme::detail {

// What the parts of an engine have in common. All of it outlives them.
struct PartContext {
  Communicator& ranks;   // all that train
  Communicator& owners;  // those that the stage divides among: all, or a machine's
  const ModelPlan& plan;
  const EngineOptions& options;
  MemoryLedger& ledger;
  std::weak_ptr<const void> engine{};   // gone with the engine
  const std::int64_t* steps = nullptr;  // updates so far
  SparseUse* sparse_use = nullptr;      // where rows that are sent are counted

  // A rank's micro-batches are added up where they are computed: by a process alone, unless each is
  // to be compressed, ...
  bool adds_locally() const {
    const bool each = options.compress != nullptr && options.sum_order == SumOrder::kChained;
    return (ranks.size() == 1 && !each) || one_communication();
  }
  // ... and where the ranks' sums follow in one communication per step.
  bool one_communication() const {
    return options.sum_order == SumOrder::kLocalFirst && ranks.size() > 1;
  }
};

}  // namespace trireme::detail
