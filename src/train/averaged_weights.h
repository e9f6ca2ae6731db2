#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "trireme/parallel/engine.h"

namespace trireme::detail {

// Parameters that an engine trains, also those that are frozen for a while: not by what is so on
// this rank now, since what is asked of the engine about them is collective.
std::vector<std::pair<std::string, at::Tensor>> trained_parameters(const EngineBase& engine,
                                                                   const torch::nn::Module& module);

// Calls `body` while the moving averages are in the place of the weights. Collective.
void with_averages(EngineBase& engine,
                   const torch::nn::Module& module,
                   const std::function<void()>& body);

}  // namespace trireme::detail
