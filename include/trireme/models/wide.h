#pragma once

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "trireme/models/initialisation.h"

namespace trireme::models {

struct WideOptions {
  std::int64_t features = 0;
  std::int64_t width = 16;
  std::int64_t outputs = 2;
  Initialisation initialisation = Initialisation::kXavier;
};

// For samples with few of very many features: each feature has a row of a table, whose gradient is
// sparse, a sample is the sum of its features' rows times their values, and a linear layer scores
// it.
class WideImpl : public torch::nn::Module {
 public:
  explicit WideImpl(const WideOptions& options);
  // Row i of the batch is [offsets[i], offsets[i + 1]) of indices and values.
  torch::Tensor forward(const torch::Tensor& indices,
                        const torch::Tensor& values,
                        const torch::Tensor& offsets);

  const WideOptions options;

 private:
  torch::nn::EmbeddingBag table_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Wide);

}  // namespace trireme::models
