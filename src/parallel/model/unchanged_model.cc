#include "parallel/model/unchanged_model.h"

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

std::vector<const at::TensorImpl*> registered_in(const torch::nn::Module& model) {
  std::vector<const at::TensorImpl*> found;
  for (const at::Tensor& parameter : model.parameters(/*recurse=*/true)) {
    found.push_back(parameter.unsafeGetTensorImpl());
  }
  return found;
}

}  // namespace

UnchangedModel::UnchangedModel(const torch::nn::Module& model,
                               const std::vector<Parameter>& parameters)
    : model_(model), parameters_(parameters), registered_(registered_in(model)) {
  for (const Parameter& parameter : parameters) {
    storages_.push_back(parameter.tensor.storage().unsafeGetStorageImpl());
  }
}

void UnchangedModel::check_registered() const {
  const std::vector<const at::TensorImpl*> now = registered_in(model_);
  if (now == registered_) {
    return;
  }
  TRIREME_CHECK(now.size() == registered_.size(),
                "the model had {} parameters when the engine was built and has {}: those "
                "registered since then would not be trained; register them earlier, or call "
                "engine.unwrap() and build a new engine",
                {registered_.size(), now.size()});
  const auto is_in = [](const std::vector<const at::TensorImpl*>& list, const at::Tensor& tensor) {
    return std::find(list.begin(), list.end(), tensor.unsafeGetTensorImpl()) != list.end();
  };
  for (const auto& item : model_.named_parameters(/*recurse=*/true)) {
    TRIREME_CHECK(is_in(registered_, item.value()),
                  "parameter ",
                  item.key(),
                  " is not the tensor it was when the engine was built (replace_module?): it would "
                  "not be trained; call engine.unwrap(), replace it, and build a new engine");
  }
  for (const Parameter& parameter : parameters_) {
    TRIREME_CHECK(is_in(now, parameter.tensor),
                  "parameter {} was taken out of the model after the engine was built: call "
                  "engine.unwrap(), change the model, and build a new engine",
                  {parameter.name});
  }
}

void UnchangedModel::check() const {
  check_registered();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    TRIREME_CHECK(parameter.tensor.storage().unsafeGetStorageImpl() == storages_[i] &&
                      real_sizes(parameter.tensor) == parameter.sizes,
                  "parameter ",
                  parameter.name,
                  " was given other memory or another shape (set_data, to()) after the engine was "
                  "built: change values inside engine.gathered(), and shapes before building it");
    // One that was trainable may be frozen for a while: no gradient comes of it.
    TRIREME_CHECK(
        parameter.trainable || !parameter.tensor.requires_grad(),
        "parameter {} was unfrozen after the engine was built, which has neither gradients "
        "nor optimizer states for it: freeze it (requires_grad_(false)) after the engine "
        "is built, not before; or call engine.unwrap(), unfreeze it, and build a new "
        "engine",
        {parameter.name});
  }
}

std::size_t UnchangedModel::parameter_named(const std::string& name) const {
  const auto all = model_.named_parameters(true);
  const at::Tensor* tensor = all.find(name);
  TRIREME_CHECK(tensor != nullptr,
                "the model has no parameter {}; its first one is {}",
                {name, parameters_[0].name});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.is_same(*tensor)) {
      return i;
    }
  }
  throw ConfigError(concat(name, " was registered after the engine was built"));
}

}  // namespace trireme::detail
