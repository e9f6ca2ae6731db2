#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>

#include "trireme/checkpoint/tensor_source.h"

// Module archives of LibTorch: what torch::save(module, path) writes and torch::load(module, path)
// reads.

namespace trireme {

// Writes an archive that torch::load takes for a module with tensors of these names; complete or
// absent. torch::load also looks for the modules that hold no tensors (a Dropout): the source has
// to know them (ModelNotes). Unlike other exports, it holds all tensors at a time.
void export_torch_archive(const TensorSource& source, const std::string& path);

// The tensors of an archive, in memory. Throws DataError for a file that is not one, is cut short
// or damaged, and ConfigError for one that holds tensors of types Trireme does not have.
std::unique_ptr<TensorSource> open_torch_archive(const std::string& path);

// The ModelNotes of a module, to be kept with its weights.
Notes module_notes(const torch::nn::Module& module);

}  // namespace trireme
