#pragma once

#include <cstdint>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "trireme/models/initialisation.h"

namespace trireme::models {

struct ConvnetOptions {
  std::int64_t channels = 1;  // of the images
  std::int64_t rows = 28;
  std::int64_t columns = 28;
  std::vector<std::int64_t> stages = {32, 64};  // channels after each; every stage halves the image
  std::int64_t hidden = 128;
  std::int64_t outputs = 10;
  double dropout = 0.25;
  bool recompute = false;  // each stage's activations, in backward, instead of keeping them
  Initialisation initialisation = Initialisation::kHe;
};

// A stage: convolution 3x3, batch normalisation, maximum over 2x2, ReLU.
class ConvnetStageImpl : public torch::nn::Module {
 public:
  ConvnetStageImpl(std::int64_t from, std::int64_t to);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::Conv2d convolution_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
};
TORCH_MODULE(ConvnetStage);

// Stages, then a hidden layer: images [batch, channels, rows, columns] to scores [batch, outputs].
class ConvnetImpl : public torch::nn::Module {
 public:
  explicit ConvnetImpl(const ConvnetOptions& options = {});
  torch::Tensor forward(const torch::Tensor& images);

  const ConvnetOptions options;

 private:
  std::vector<ConvnetStage> stages_;
  torch::nn::Dropout drop_{nullptr};
  torch::nn::Linear hidden_{nullptr}, head_{nullptr};
};
TORCH_MODULE(Convnet);

}  // namespace trireme::models
