#include "train/averaged_weights.h"

#include <utility>
#include <vector>

namespace trireme::detail {

void with_averages(EngineBase& engine,
                   const torch::nn::Module& module,
                   const std::function<void()>& body) {
  std::vector<std::pair<at::Tensor, at::Tensor>> averages;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) {
      averages.emplace_back(item.value(), engine.average(item.key()));
    }
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
