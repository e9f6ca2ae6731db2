#pragma once

#include <memory>

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "trireme/comm/communicator.h"

namespace trireme {

// Batch normalisation over the batches of all ranks together, for inputs [batch, channels, ...].
// In evaluation, and with running statistics, it is torch's.
//
// The statistics are combined in rank order in float64, so they are the same on all ranks; they are
// not those of another world size, where batches are other ones (docs/parity.md). Collective in
// forward and backward: every rank has a micro-batch in every round and uses the same parameters.
// Gradients can be differentiated again (create_graph, as a gradient penalty does), on all ranks.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                    std::shared_ptr<Communicator> ranks);
  void reset() override;
  torch::Tensor forward(const torch::Tensor& input);

  torch::nn::BatchNormOptions options;
  torch::Tensor weight;
  torch::Tensor bias;
  torch::Tensor running_mean;
  torch::Tensor running_var;
  torch::Tensor num_batches_tracked;

 private:
  std::shared_ptr<Communicator> ranks_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace trireme
