#pragma once

#include <functional>
#include <memory>

#include <torch/nn/module.h>

namespace trireme::models {

// Activation checkpointing: runs `forward(input)` of a module without keeping what is inside, and
// runs it again in backward. Memory for one input instead of everything in between, time for one
// more forward. The result and the gradients have the same bits: random numbers (dropout) are drawn
// again from the same state, and running statistics (batch norms) are not counted twice.
//
//   x = recompute(block.ptr(), x, [&](const torch::Tensor& in) { return block->forward(in); });
//
// `forward` uses no parameters but the module's, and must outlive backward with what it captures.
// The module's parameters are inputs of the one node this adds to the graph, so whoever walks the
// graph or hooks parameters sees them as always.
torch::Tensor recompute(const std::shared_ptr<torch::nn::Module>& module,
                        const torch::Tensor& input,
                        std::function<torch::Tensor(const torch::Tensor&)> forward);

}  // namespace trireme::models
