#pragma once

#include <memory>

#include "parallel/model/model_plan.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"

namespace trireme::detail {

// What the parts of an engine have in common. All of it outlives them.
struct PartContext {
  Communicator& ranks;   // all that train
  Communicator& owners;  // those that the stage divides among: all, or a machine's
  const ModelPlan& plan;
  const EngineOptions& options;
  MemoryLedger& ledger;
  std::weak_ptr<const void> engine{};  // gone with the engine

  // A rank's micro-batches are added up where they are computed: by a process alone, ...
  bool adds_locally() const { return ranks.size() == 1 || one_communication(); }
  // ... and where the ranks' sums follow in one communication per step.
  bool one_communication() const {
    return options.sum_order == SumOrder::kLocalFirst && ranks.size() > 1;
  }
};

}  // namespace trireme::detail
