#include "parallel/gradient/gradient_hooks.h"

#include <string>
#include <unordered_set>

#include <torch/csrc/autograd/function_hook.h>

namespace trireme::detail {

class GradientHooks::Hook final : public torch::autograd::FunctionPreHook {
 public:
  Hook(std::shared_ptr<Link> link, std::size_t parameter)
      : link_(std::move(link)), parameter_(parameter) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    if (!link_->receive || gradients.empty() || !gradients[0].defined()) {
      return gradients;
    }
    link_->receive(parameter_, gradients[0]);
    return {at::Tensor()};  // nothing is left to accumulate
  }

 private:
  std::shared_ptr<Link> link_;
  std::size_t parameter_;
};

namespace {

// A function that LibTorch has not made: its own have a name ("ViewBackward0") or are in its
// namespace, while users' are wrapped into a CppNode.
bool is_somebodys_own(const torch::autograd::Node& node) {
  const std::string name = node.name();
  return name.find("CppNode") != std::string::npos ||
         (name.find("::") != std::string::npos && !name.starts_with("torch::autograd::"));
}

}  // namespace

GradientHooks::GradientHooks(const std::vector<Parameter>& parameters, Receive receive)
    : count_(parameters.size()) {
  link_->receive = std::move(receive);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].trainable) {
      auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i].tensor);
      accumulator->add_pre_hook(std::make_unique<Hook>(link_, i));
      parameter_of_[accumulator.get()] = i;
      accumulators_.push_back(std::move(accumulator));
    }
  }
}

GradientHooks::~GradientHooks() {
  link_->receive = nullptr;
}

std::vector<bool> GradientHooks::reachable_from(const at::Tensor& loss) const {
  std::vector<bool> reachable(count_, false);
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> stack = {
      torch::autograd::impl::gradient_edge(loss).function.get()};
  while (!stack.empty()) {
    torch::autograd::Node* node = stack.back();
    stack.pop_back();
    if (node == nullptr || !seen.insert(node).second) {
      continue;
    }
    const auto parameter = parameter_of_.find(node);
    if (parameter != parameter_of_.end()) {
      reachable[parameter->second] = true;
      continue;
    }
    if (!node->is_traceable() && node->num_outputs() > 0 && is_somebodys_own(*node)) {
      // It may run a backward inside (activation checkpointing): anything can come of it.
      reachable.assign(count_, true);
      return reachable;
    }
    for (const auto& edge : node->next_edges()) {
      stack.push_back(edge.function.get());
    }
  }
  return reachable;
}

}  // namespace trireme::detail
