#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/gradient_sums.h"
#include "parallel/parameter_memory.h"
#include "trireme/core/host_memory.h"
#include "trireme/optim/optimizer.h"

namespace trireme::detail {

// Masters, states and averages of the ranges that this rank updates, and the updates themselves.
// Everything is computed element by element or as exact sums, so the ranges do not matter.
class ShardedOptimizer {
 public:
  // `divided`: this rank updates its range of each unit; otherwise all of it.
  ShardedOptimizer(const Optimizer& optimizer,
                   const ParameterMemoryContext& context,
                   ParameterMemory& memory,
                   bool divided);

  // Takes the full-precision values of a unit from rank 0's tensors, while they are still there.
  void take_masters(std::size_t unit);
  // Starts the moving averages, when the parameters are in their memory.
  void take_averages(std::size_t unit);
  // A parameter was written from outside: where its 16-bit value is another one, the master
  // follows; elsewhere it keeps its precision.
  void parameters_changed(std::size_t unit,
                          std::size_t index,
                          const at::Tensor& before,
                          const at::Tensor& now);

  struct Norm {
    double norm = 0;
    // Of the ranks' bounds.
    double least_bound = 0;
    double most_bound = 0;
  };
  // The norm of the transformed gradient of all used parameters, as torch has it also where some
  // are not finite. `bound` is what this rank will clip it to; the ranks of `compared` (those of
  // the context, or more) hear of each other's. Collective.
  Norm norm(const GradientSums& gradients,
            const std::vector<bool>& used,
            const Scaling& scaling,
            double bound,
            Communicator& compared);

  // Updates the ranges of used parameters and hands them to the memory unit by unit. Collective.
  void update(const GradientSums& gradients,
              const std::vector<bool>& used,
              const GradientTransform& transform,
              double learning_rate);

  // Whole flat parameter `parameter` of what this rank keeps of its unit. Collective.
  at::Tensor gather(std::size_t parameter, const std::byte* own, std::int64_t first, Dtype dtype);
  at::Tensor average(std::size_t parameter);

  int state_count() const { return optimizer_->state_count(); }
  const Optimizer& rule() const { return *optimizer_; }
  // What this rank keeps of a unit, from the first element of its range on: the weights at full
  // precision, states, averages.
  struct Memory {
    std::string kind;
    Dtype dtype = Dtype::kFloat32;
    std::byte* data = nullptr;
  };
  std::vector<Memory> memories(std::size_t unit);
  // Masters were written from outside: 16-bit parameters follow.
  void round_masters(std::size_t unit);
  // Updates so far, by parameter.
  const std::vector<std::int64_t>& steps() const { return steps_; }
  void set_steps(std::vector<std::int64_t> steps) { steps_ = std::move(steps); }
  // What this rank updates of a unit.
  Range range(std::size_t unit) const;

 private:
  struct UnitState {
    HostMemory masters;
    std::vector<HostMemory> states;
    HostMemory averages;
    std::vector<MemoryLedger::Charge> charges;
  };

  std::size_t at(std::size_t unit, std::int64_t element) const;
  std::byte* master(std::size_t unit, std::int64_t element);
  ParameterSlice slice(std::size_t unit, const Piece& piece, const GradientSums& gradients);
  void update_lamb(const Lamb& lamb,
                   const GradientSums& gradients,
                   const std::vector<bool>& used,
                   const GradientTransform& transform,
                   double learning_rate);
  // The pieces of a unit that this rank updates, none of which crosses from one rank's range into
  // another's.
  std::vector<Piece> pieces(std::size_t unit) const;
  // Calls `work` for every piece of the used parameters of a unit, on all threads.
  template <class Function>
  void for_pieces(std::size_t unit, const std::vector<bool>& used, const Function& work);

  std::unique_ptr<Optimizer> optimizer_;
  ParameterMemoryContext context_;
  ParameterMemory& memory_;
  bool divided_;
  int threads_;
  std::vector<UnitState> units_;
  std::vector<std::int64_t> steps_;  // by parameter
};

}  // namespace trireme::detail
