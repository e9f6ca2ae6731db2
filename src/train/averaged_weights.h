#pragma once

#include <functional>

#include <torch/nn/module.h>

#include "trireme/parallel/engine.h"

namespace trireme::detail {

// Calls `body` while the moving averages are in the place of the weights. Collective.
void with_averages(EngineBase& engine,
                   const torch::nn::Module& module,
                   const std::function<void()>& body);

}  // namespace trireme::detail
