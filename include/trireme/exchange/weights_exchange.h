#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "trireme/checkpoint/tensor_source.h"

// Weights out of checkpoints and into them. Names of other programs are in
// trireme/exchange/gpt2_names.h, archives of LibTorch in trireme/archive/torch_archive.h.

namespace trireme {

// Writes an ordinary safetensors file: plain names, whole tensors, row by row; complete or absent.
// Throws Error with file and reason (a full disk).
void export_safetensors(const TensorSource& source,
                        const std::string& path,
                        const std::map<std::string, std::string>& metadata = {});

// Makes a checkpoint of step `step` that holds these weights and nothing else, and returns its
// path. Throws ConfigError if the folder already has one of this step, or another job writes there.
std::string import_weights(const TensorSource& source,
                           const std::string& folder,
                           std::int64_t step = 0,
                           const Notes& notes = {});

}  // namespace trireme
