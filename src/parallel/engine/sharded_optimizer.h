#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/engine/host_copies.h"
#include "parallel/engine/run_norms.h"
#include "parallel/engine/thread_pool.h"
#include "parallel/engine/update.h"
#include "parallel/memory/gradient_sums.h"
#include "parallel/memory/optimizer_memory.h"

namespace trireme::detail {

// Updates the ranges that this rank is responsible for. Everything is computed element by element
// or as exact sums, so neither the ranges nor the threads matter.
class ShardedOptimizer {
 public:
  ShardedOptimizer(const Optimizer& optimizer,
                   const PartContext& context,
                   ParameterMemory& parameters);

  // A step's gradients: their sums, and by parameter, whether there are any.
  struct Gradients {
    const GradientSums& sums;
    const std::vector<bool>& used;
  };

  struct Norm {
    double norm = 0;
    // Of the ranks' bounds.
    double least_bound = 0;
    double most_bound = 0;
  };
  // The norm of the transformed gradient of all used parameters, as torch has it also where some
  // are not finite. `bound` is what this rank will clip it to; the ranks of `compared` (the owners,
  // or more) hear of each other's. Collective.
  Norm norm(const Gradients& gradients,
            const Scaling& scaling,
            double bound,
            Communicator& compared);

  // Updates the ranges of used parameters, unit by unit. Collective, but only before anything is
  // changed.
  void update(Update& update,
              const Gradients& gradients,
              const GradientTransform& transform,
              double learning_rate);

  // A whole parameter, of the owners' parts of it; this rank's is the beginning of `own`.
  // Collective.
  at::Tensor gather(std::size_t parameter, const ConstSpan& own);
  at::Tensor average(std::size_t parameter);

  OffloadUse offload() const;

  // Also its updates so far, by parameter.
  ParameterRules& rules() { return rules_; }
  OptimizerMemory& memory() { return memory_; }

 private:
  struct Block {
    std::size_t unit = 0;
    Piece piece;
    std::size_t parameter = 0;
  };
  struct Step {
    const GradientTransform& transform;
    double learning_rate = 0;
  };
  // The moving average takes a step.
  static void follow(const Span& average, const Span& weights, double decay);
  // What this rank updates of a range of a unit, in blocks for the threads, none of which crosses
  // from one rank's range into another's.
  std::vector<Block> blocks(std::size_t unit, Range within, const std::vector<bool>& used) const;
  std::vector<Block> blocks(std::size_t unit, const std::vector<bool>& used) const {
    return blocks(unit, context_.plan.ownership.updated(unit), used);
  }
  // With its gradient; not of a sparse unit whose rule takes runs.
  ParameterSlice slice(const Block& block, const GradientSums& sums) const;
  // What rules need to know of whole parameters before anything changes. Collective.
  void measure(const Gradients& gradients, const GradientTransform& transform);

  // --- where states are not beside the parameters (EngineOptions::offload)

  void update_windows(Update& update, const Gradients& gradients, const Step& step);
  void update_window(std::size_t turn,
                     const StateWindow& window,
                     const Gradients& gradients,
                     const Step& step);
  std::vector<HostCopies::Fetch> fetches(const StateWindow& window, const GradientSums& sums) const;

  // --- units whose sums are rows

  // Every rule that is to update rows alone can.
  void check_rows() const;
  // Whether rows without gradients are left as they are, and so need no look.
  bool leaves_others(std::size_t unit, const GradientTransform& transform) const;
  // Gradients as runs, zeros included, for the rules that need them for as long as a step's update.
  void spread_rows(const Gradients& gradients);
  void update_rows(std::size_t unit, const TouchedRows& touched, const Step& step);
  // All elements of a block, of which most have the gradient zero.
  void update_block(const Block& block, const TouchedRows& touched, const Step& step);

  PartContext context_;
  ParameterRules rules_;
  OptimizerMemory memory_;
  ThreadPool pool_;
  std::int64_t thread_block_;
  std::vector<bool> pruned_;  // by parameter: what is pruned of it stays so
  struct Spread {
    device::Buffer memory;
    MemoryLedger::Charge charge;
    bool there() const { return memory.data() != nullptr; }
  };
  std::unique_ptr<HostCopies> copies_;  // null: the gradients are where the states are
  std::vector<Spread> spread_;          // by unit, where spread_rows() has made it, for a step
  std::optional<RunNorms> norms_;
};

}  // namespace trireme::detail
