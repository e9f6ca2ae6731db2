#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>

#include "trireme/checkpoint/tensor_source.h"

namespace trireme {

// Writes parameters and buffers of a module as one safetensors file, one tensor at a time; complete
// or absent. Works on a model that an engine holds, at any stage, from one rank alone.
void save_weights(const std::string& path,
                  const torch::nn::Module& module,
                  const std::map<std::string, std::string>& metadata = {});

// Throws ConfigError, with the name of the tensor and what to do, if save_weights would refuse the
// module: before a training whose weights are to be saved. `where` begins the message.
void check_weights(const torch::nn::Module& module, const std::string& where);

// Sets parameters and buffers from such a file. Throws ConfigError, changing nothing, if a name is
// missing or left over, or a shape differs.
void load_weights(const std::string& path, torch::nn::Module& module);
// The same from any source, a checkpoint for instance.
void load_weights(const TensorSource& source, torch::nn::Module& module);

}  // namespace trireme
