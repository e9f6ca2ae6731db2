#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "trireme/comm/communicator.h"

namespace trireme {

// Running statistics of batch norms as a single process would have them that goes through a step's
// micro-batches in order, for any number of ranks. (Otherwise each rank's follow its own
// micro-batches, and evaluation depends on the number of ranks.)
//
// A batch norm sets running = (1 - momentum) * running + momentum * batch. Here each micro-batch
// starts from 0, which leaves momentum * batch; at the end of a step the ranks exchange these, and
// how often each norm was used, and all apply them in the order of the micro-batches. Norms that
// are in evaluation mode keep theirs.
//
//   statistics.begin();
//   auto loss = ...forward...;
//   statistics.end(engine.micro_batch(k));
//   ...
//   statistics.finish_step(engine.micro_batches());
//
// Handles torch::nn::BatchNorm1d, 2d and 3d that track statistics with a fixed momentum.
class RunningStatistics {
 public:
  // Rank 0's statistics become everyone's. Collective.
  RunningStatistics(torch::nn::Module& model, std::shared_ptr<Communicator> ranks);

  // Whether there is anything to do, and whether every buffer of the model is looked after here
  // (EngineOptions::broadcast_buffers is then of no use).
  bool empty() const { return norms_.empty(); }
  bool covers_all_buffers() const { return covers_all_; }

  // Around the forward of a micro-batch in training mode.
  void begin();
  void end(std::int64_t micro_batch);
  // Applies the statistics of all micro-batches of a step. Collective.
  void finish_step(std::int64_t micro_batches);
  // Drops those of a step that is not taken.
  void forget_step();
  // The model's buffers were set, between two steps and alike on all ranks: continues from them.
  void buffers_changed();

 private:
  struct Norm {
    std::shared_ptr<const torch::nn::Module> module;
    at::Tensor mean, variance, count;     // the module's own
    at::Tensor kept_mean, kept_variance;  // on the host
    double momentum;
    std::int64_t counted;  // uses so far, of all ranks
  };
  void put_back();

  std::vector<Norm> norms_;
  std::shared_ptr<Communicator> ranks_;
  std::int64_t numel_ = 0;  // of one micro-batch's record
  bool covers_all_ = true;
  std::vector<std::pair<std::int64_t, std::vector<float>>> recorded_;
};

}  // namespace trireme
