#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "parallel/model/parameter_table.h"

namespace trireme::detail {

// What a model was when its parameters had moved into an engine. Both outlive this.
class UnchangedModel {
 public:
  UnchangedModel(const torch::nn::Module& model, const std::vector<Parameter>& parameters);

  // Throws ConfigError where somebody has put other tensors in the place of the parameters, other
  // memory under them, or has unfrozen what was frozen then.
  void check() const;
  // A parameter by any of its names; throws ConfigError.
  std::size_t parameter_named(const std::string& name) const;

 private:
  void check_registered() const;

  const torch::nn::Module& model_;
  const std::vector<Parameter>& parameters_;
  // Parameters of the model, tied ones under each name; the table keeps them alive.
  std::vector<const at::TensorImpl*> registered_;
  std::vector<const c10::StorageImpl*> storages_;  // by parameter: where its tensor points
};

}  // namespace trireme::detail
