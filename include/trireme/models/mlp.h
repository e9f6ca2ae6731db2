#pragma once

#include <cstdint>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "trireme/models/initialisation.h"

namespace trireme::models {

struct MlpOptions {
  std::int64_t inputs = 784;
  std::vector<std::int64_t> hidden = {256, 128};
  std::int64_t outputs = 10;
  double dropout = 0;      // after each hidden layer
  bool recompute = false;  // each hidden layer's activations, in backward, instead of keeping them
  Initialisation initialisation = Initialisation::kHe;
};

// Linear layers with ReLU between them: inputs [batch, ...] to scores [batch, outputs].
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpOptions& options = {});
  torch::Tensor forward(const torch::Tensor& input);

  const MlpOptions options;

 private:
  std::vector<torch::nn::Linear> layers_;
  torch::nn::Dropout drop_{nullptr};
};
TORCH_MODULE(Mlp);

}  // namespace trireme::models
