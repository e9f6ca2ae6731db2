#include "train/averaged_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::detail {

std::vector<std::pair<std::string, at::Tensor>> trained_parameters(
    const EngineBase& engine, const torch::nn::Module& module) {
  const auto all = module.named_parameters();
  std::vector<const at::TensorImpl*> frozen;  // tied ones have several names
  for (const std::string& name : engine.frozen()) {
    frozen.push_back(all[name].unsafeGetTensorImpl());
  }
  std::vector<std::pair<std::string, at::Tensor>> trained;
  for (const auto& item : all) {
    if (std::find(frozen.begin(), frozen.end(), item.value().unsafeGetTensorImpl()) ==
        frozen.end()) {
      trained.emplace_back(item.key(), item.value());
    }
  }
  return trained;
}

void with_averages(EngineBase& engine,
                   const torch::nn::Module& module,
                   const std::function<void()>& body) {
  std::vector<std::pair<at::Tensor, at::Tensor>> averages;
  for (const auto& [name, parameter] : trained_parameters(engine, module)) {
    averages.emplace_back(parameter, engine.average(name));
  }
  const at::NoGradGuard no_grad;
  auto scope = engine.gathered();
  std::vector<at::Tensor> before;
  for (auto& [parameter, average] : averages) {
    before.push_back(parameter.detach().clone());
    parameter.copy_(average);
  }
  body();
  for (std::size_t i = averages.size(); i-- > 0;) {  // backwards: a tied one comes twice
    averages[i].first.copy_(before[i]);
  }
  scope.close();
}

}  // namespace trireme::detail
