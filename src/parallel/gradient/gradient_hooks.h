#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "parallel/model/parameter_table.h"

namespace trireme::detail {

// Takes the gradients of parameters when they are complete, before LibTorch would store them in
// .grad. Gone with this object, although the graph may keep the hooks themselves alive.
class GradientHooks {
 public:
  using Receive = std::function<void(std::size_t parameter, const at::Tensor& gradient)>;

  GradientHooks(const std::vector<Parameter>& parameters, Receive receive);
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks();

  // By parameter: whether the graph behind `loss` leads to it, so that nobody waits for a gradient
  // that will not come.
  std::vector<bool> reachable_from(const at::Tensor& loss) const;

 private:
  class Hook;
  struct Link {
    Receive receive;  // empty when nobody wants them any more
  };
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

  std::shared_ptr<Link> link_ = std::make_shared<Link>();
  std::vector<Accumulator> accumulators_;  // kept alive: the hooks are theirs
  std::unordered_map<const torch::autograd::Node*, std::size_t> parameter_of_;
  std::size_t count_;
};

}  // namespace trireme::detail
