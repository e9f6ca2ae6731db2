// Beside the optimizers of LibTorch, which nobody here wrote: thirty steps on the same gradients.

#include <gtest/gtest.h>

#include <torch/optim.h>

#include "support/torch.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

void expect_parity(
    const Optimizer& ours,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make) {
  torch::manual_seed(1);
  auto theirs = torch::randn({1009}).requires_grad_();
  auto mine = theirs.detach().clone();
  auto first = torch::zeros_like(mine);
  auto second = torch::zeros_like(mine);
  const auto optimizer = make({theirs});
  for (int t = 1; t <= 30; ++t) {
    auto gradient = torch::randn({1009}) * 0.1;
    theirs.mutable_grad() = gradient.clone();
    optimizer->step();
    ParameterSlice slice;
    slice.master = mine.data_ptr();
    slice.gradient = gradient.data_ptr();
    slice.states = {first.data_ptr(), second.data_ptr()};
    slice.numel = mine.numel();
    slice.step = t;
    ours.update(slice, {}, ours.learning_rate());
  }
  EXPECT_TRUE(torch::allclose(mine, theirs.detach(), 1e-5, 1e-6))
      << ours.name() << ": " << (mine - theirs.detach()).abs().max().item<float>();
}

TEST(TorchParity, Sgd) {
  expect_parity(
      Sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}),
      [](auto parameters) {
        return std::make_unique<torch::optim::SGD>(
            parameters,
            torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true));
      });
}

TEST(TorchParity, Adam) {
  expect_parity(Adam({.lr = 0.01, .weight_decay = 0.1}), [](auto parameters) {
    return std::make_unique<torch::optim::Adam>(parameters,
                                                torch::optim::AdamOptions(0.01).weight_decay(0.1));
  });
}

TEST(TorchParity, AdamW) {
  expect_parity(AdamW({.lr = 0.01, .weight_decay = 0.1}), [](auto parameters) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  });
}

TEST(TorchParity, Adagrad) {
  expect_parity(Adagrad({.lr = 0.05, .lr_decay = 0.01}), [](auto parameters) {
    return std::make_unique<torch::optim::Adagrad>(
        parameters, torch::optim::AdagradOptions(0.05).lr_decay(0.01));
  });
}

}  // namespace
}  // namespace trireme
