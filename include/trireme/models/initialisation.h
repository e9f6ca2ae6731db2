#pragma once

#include <torch/nn/module.h>

#include "trireme/settings/train_settings.h"

namespace trireme::models {

using trireme::Initialisation;

// Sets the weights of linear, convolutional and embedding layers of a module anew; their biases to
// 0 (unless kTorch, which leaves everything as it is). Norms are left alone. `layers`: of a
// transformer, for kGpt2; a branch ends where a linear layer is called "out" or "down".
void initialise(torch::nn::Module& model, Initialisation how, std::int64_t layers = 1);

}  // namespace trireme::models
