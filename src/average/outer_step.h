#pragma once

#include <span>
#include <vector>

#include "average/exchange.h"
#include "trireme/average/averaging.h"

namespace trireme::detail {

// DiLoCo's outer optimizer: SGD with momentum on what replicas have moved by. Its weights (those of
// the last averaging) and its momentum are divided among all ranks: each has those of the elements
// that it computes the means of (Exchange::shares).
class OuterStep {
 public:
  // `weights`: which tensors they are.
  OuterStep(const DiLoCo::Outer& options,
            const Exchange& exchange,
            Held held,
            FlatState::Choice weights);

  // All replicas have the weights of this state: goes on from them, without momentum.
  void begin(const StateView& state);
  // The same with the momentum that it has.
  void take_weights(const StateView& state);
  // Means of the elements of this rank, one run after another, become the next weights.
  void apply(std::span<double> means);
  // Before the first run of an averaging.
  void rewind() { at_ = 0; }

  // Lists the momentum, and the weights where they are not everyone's; with this rank's parts of
  // it.
  void describe(bool weights, StateView& view);

 private:
  const DiLoCo::Outer options_;
  const Exchange& exchange_;
  const Held held_;
  const FlatState::Choice chosen_;
  std::vector<StateTensor> tensors_;  // the weights that it is about
  std::vector<StateSlice> parts_;     // of these, that this rank has, one after another
  // Rounded to the dtype of the weights; the momentum is not.
  std::vector<double> weights_;
  std::vector<double> momentum_;
  std::size_t at_ = 0;
};

}  // namespace trireme::detail
