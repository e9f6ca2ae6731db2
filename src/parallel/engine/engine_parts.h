#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "parallel/engine/pruning.h"
#include "parallel/engine/row_bounds.h"
#include "parallel/engine/sharded_optimizer.h"
#include "parallel/engine/shared_passes.h"
#include "parallel/engine/step_end.h"
#include "parallel/engine/step_phase.h"
#include "parallel/engine/update.h"
#include "parallel/gradient/gradient_hooks.h"
#include "parallel/gradient/gradient_rounds.h"
#include "parallel/gradient/kept_gradients.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/model/unchanged_model.h"
#include "trireme/core/pulse.h"
#include "trireme/parallel/engine.h"
#include "trireme/shard/micro_batches.h"

namespace trireme::detail {

// What an engine is made of: one machine for DDP and the ZeRO stages. What differs between them is
// in the plan's ownership, and in the memories that follow from it.
struct EngineParts {
  EngineParts(std::shared_ptr<torch::nn::Module> module,
              const Optimizer& rule,
              const EngineOptions& engine_options,
              std::shared_ptr<Communicator> communicator);
  EngineParts(const EngineParts&) = delete;
  EngineParts& operator=(const EngineParts&) = delete;
  ~EngineParts() = default;

  PartContext context() {
    return {*ranks, *owners, plan, options, *ledger, alive, &steps, &sparse_use};
  }
  std::int64_t rounds_of(const MicroBatches& micro_batches) {
    return context().one_communication() ? 1 : micro_batches.rounds();
  }
  std::int64_t own_micro_batches() const { return dealt.of(ranks->rank()); }
  // This rank has done all of its micro-batches.
  bool complete_here() const { return phase.done() >= own_micro_batches(); }
  Rate rate() const { return {base_rate, options.schedule.factor(steps)}; }
  // Throws ConfigError for a rate that cannot be.
  double checked_rate() const;
  // A parameter in memory of its own.
  at::Tensor whole(std::size_t parameter);
  void broadcast_buffers(int root);

  // --- what may be called when; `what` is the name of the function for messages

  void check_alive() const;
  void check_no_scope(const char* what) const;
  void check_between_steps(const char* what) const;
  // The rest of a refusal that begins with a function's name. It names what ends a step whose data
  // has ended before.
  std::string in_the_middle() const;

  std::shared_ptr<const void> alive = std::make_shared<int>(0);  // others hold it weakly
  std::shared_ptr<torch::nn::Module> model;
  EngineOptions options;
  std::shared_ptr<Communicator> ranks;
  Communicator* owners = nullptr;  // those among whom the stage divides: the ranks, or a machine's
  std::shared_ptr<MemoryLedger> ledger = MemoryLedger::create();
  MemoryLedger::Charge buffers_charge;
  MicroBatches dealt;
  ModelPlan plan;

  double base_rate = 0;
  std::unique_ptr<LossScaler> scaler;
  std::int64_t steps = 0;
  SparseUse sparse_use;
  double norm = std::numeric_limits<double>::quiet_NaN();

  std::unique_ptr<ParameterMemory> memory;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::unique_ptr<RowBounds> bounds;  // null: no embedding has one
  std::unique_ptr<Pruner> pruner;     // null: nothing is pruned
  std::unique_ptr<GradientRounds> gradients;
  std::optional<UnchangedModel> unchanged;
  std::unique_ptr<GradientHooks> hooks;
  KeptGradients kept{0};
  std::shared_ptr<const SharedPasses> shared;  // null: its backward passes are its own

  StepPhase phase;
  StepEnd end{*this};
  std::optional<Update> update;                     // in Phase::kUpdating
  std::optional<PulseEngine> pulse{std::in_place};  // until unwrap()

 private:
  void list_model();
  void choose_precision();
  void check_feedback() const;
  void check_shard_group();
  void take_model();
  void receive(std::size_t parameter, const at::Tensor& gradient);
};

}  // namespace trireme::detail
