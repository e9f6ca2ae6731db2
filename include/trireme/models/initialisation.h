#pragma once

#include <string>

#include <torch/nn/module.h>

namespace trireme::models {

// How weights begin. All draw from LibTorch's default generator, in the order of the parameters, so
// that torch::manual_seed() fixes them.
enum class Initialisation {
  kTorch,   // as LibTorch's layers do it themselves
  kHe,      // normal, variance 2 / inputs: keeps the variance through ReLU (He et al., 2015)
  kXavier,  // uniform, variance 2 / (inputs + outputs) (Glorot and Bengio, 2010)
  kGpt2,    // normal 0.02, and 0.02 / sqrt(2 * layers) where a residual branch ends (GPT-2)
};

// "torch", "he", "xavier" or "gpt2"; throws ConfigError for anything else.
Initialisation initialisation_from(const std::string& name);

// Sets the weights of linear, convolutional and embedding layers of a module anew; their biases to
// 0 (unless kTorch, which leaves everything as it is). Norms are left alone. `layers`: of a
// transformer, for kGpt2; a branch ends where a linear layer is called "out" or "down".
void initialise(torch::nn::Module& model, Initialisation how, std::int64_t layers = 1);

}  // namespace trireme::models
