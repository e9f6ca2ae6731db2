// Beside the optimizers of LibTorch, which nobody here wrote: thirty steps on the same gradients.

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim.h>

#include "support/torch.h"
#include "trireme/optim/optimizer.h"

namespace trireme::torch_parity_test {
namespace {

void expect_parity(
    const Optimizer& ours,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make) {
  torch::manual_seed(1);
  auto theirs = torch::randn({1009}).requires_grad_();
  auto mine = theirs.detach().clone();
  auto first = torch::zeros_like(mine);
  auto second = torch::zeros_like(mine);
  auto third = torch::zeros_like(mine);
  const auto optimizer = make({theirs});
  for (int t = 1; t <= 30; ++t) {
    auto gradient = torch::randn({1009}) * 0.1;
    theirs.mutable_grad() = gradient.clone();
    optimizer->step();
    ParameterSlice slice;
    slice.master = mine.data_ptr();
    slice.gradient = gradient.data_ptr();
    slice.states = {first.data_ptr(), second.data_ptr(), third.data_ptr()};
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

TEST(TorchParity, Amsgrad) {
  expect_parity(Adam({.lr = 0.01, .beta2 = 0.6, .amsgrad = true}), [](auto parameters) {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(0.01).betas({0.9, 0.6}).amsgrad(true));
  });
  expect_parity(AdamW({.lr = 0.01, .beta2 = 0.6, .amsgrad = true}), [](auto parameters) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01).betas({0.9, 0.6}).amsgrad(true));
  });
}

TEST(TorchParity, Rmsprop) {
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.9}) {
      expect_parity(Rmsprop({.lr = 0.002,
                             .alpha = 0.95,
                             .eps = 1e-5,
                             .weight_decay = 0.1,
                             .momentum = momentum,
                             .centered = centered}),
                    [&](auto parameters) {
                      return std::make_unique<torch::optim::RMSprop>(
                          parameters,
                          torch::optim::RMSpropOptions(0.002)
                              .alpha(0.95)
                              .eps(1e-5)
                              .weight_decay(0.1)
                              .momentum(momentum)
                              .centered(centered));
                    });
    }
  }
}

TEST(TorchParity, Adagrad) {
  expect_parity(Adagrad({.lr = 0.05, .lr_decay = 0.01}), [](auto parameters) {
    return std::make_unique<torch::optim::Adagrad>(
        parameters, torch::optim::AdagradOptions(0.05).lr_decay(0.01));
  });
}

// What torch.optim.Adafactor does, which LibTorch has not: its _single_tensor_adafactor.
struct TorchAdafactor {
  double lr, beta2_decay, eps2, d, weight_decay;
  torch::Tensor row_var, col_var, variance;

  void step(torch::Tensor& p, const torch::Tensor& g, int t) {
    const double eps1 = p.scalar_type() == torch::kDouble ? 0x1p-52 : 0x1p-23;
    const double share = std::pow(t, beta2_decay);
    const double root = std::sqrt(static_cast<double>(p.numel()));
    const double alpha =
        std::max(eps2, p.norm().item<double>() / root) * std::min(lr, 1 / std::sqrt(t));
    p.mul_(1 - lr * weight_decay);
    torch::Tensor estimate;
    if (g.dim() > 1) {
      row_var.lerp_(g.square().mean(-1, true), share);
      col_var.lerp_(g.square().mean(-2, true), share);
      estimate = row_var.matmul(col_var) / row_var.mean(-2, true).clamp_min(eps1);
    } else {
      variance.lerp_(g.square(), share);
      estimate = variance;
    }
    const torch::Tensor update = g * estimate.clamp_min(eps1 * eps1).rsqrt();
    p.sub_(update, alpha / std::max(1.0, update.norm().item<double>() / (root * d)));
  }
};

TEST(TorchParity, Adafactor) {
  const Adafactor ours({.lr = 0.02, .clip = 0.7, .weight_decay = 0.1});
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const std::vector<std::int64_t> kShapes[] = {{37, 29}, {2, 11, 13}, {101}, {}, {5, 3, 2, 4}};
    for (const auto& shape : kShapes) {
      torch::manual_seed(1);
      auto theirs = torch::randn(shape, type);
      // Also in another order of memory.
      auto mine = shape.size() == 4 ? theirs.contiguous(at::MemoryFormat::ChannelsLast).clone()
                                    : theirs.clone();
      auto rows = torch::zeros_like(shape.size() > 1 ? theirs.mean(-1, true) : theirs);
      auto columns = torch::zeros_like(shape.size() > 1 ? theirs.mean(-2, true) : theirs);
      TorchAdafactor reference{
          0.02, -0.8, 1e-3, 0.7, 0.1, rows, columns, torch::zeros_like(theirs)};
      auto state = torch::zeros_like(mine);
      auto other = torch::zeros_like(mine);
      WholeParameter whole{{"p", mine.sizes().vec(), mine.strides().vec()},
                           type == torch::kDouble ? Dtype::kFloat64 : Dtype::kFloat32};
      whole.states = {state.data_ptr(), other.data_ptr()};
      for (int t = 1; t <= 30; ++t) {
        const auto gradient = torch::randn(shape, type) * 0.1;
        const auto ordered = torch::empty_like(mine).copy_(gradient);
        reference.step(theirs, gradient, t);
        ParameterSlice slice;
        slice.dtype = whole.dtype;
        slice.master = mine.data_ptr();
        slice.gradient = ordered.data_ptr();
        slice.states = {state.data_ptr()};
        slice.numel = mine.numel();
        slice.step = whole.step = t;
        slice.whole = &whole;
        whole.measured.clear();
        for (const OptimizerPass& pass : ours.passes()) {
          std::vector<double> numbers(pass.count(whole.info));
          pass.measure(slice, {}, numbers.data());
          whole.measured.push_back(numbers);
          if (pass.then) {
            pass.then(whole);
          }
        }
        ours.update(slice, {}, ours.learning_rate());
        ours.finish(whole);
      }
      const double tolerance = type == torch::kDouble ? 1e-12 : 1e-5;
      EXPECT_TRUE(torch::allclose(mine, theirs, tolerance, tolerance))
          << type << " " << shape.size() << ": " << (mine - theirs).abs().max().item<double>();
    }
  }
}

// torch.optim.Muon without its rounding to bfloat16.
torch::Tensor muon_direction(torch::Tensor x) {
  const bool tall = x.size(0) > x.size(1);
  x = tall ? x.t() : x;
  x = x / x.norm().clamp_min(1e-7);
  for (int step = 0; step < 5; ++step) {
    const torch::Tensor gram = x.matmul(x.t());
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram.matmul(gram)).matmul(x);
  }
  return tall ? x.t() : x;
}

TEST(TorchParity, Muon) {
  const Muon ours({.lr = 0.02, .weight_decay = 0.1});
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const std::pair<int, int> kShapes[] = {{24, 40}, {40, 24}, {17, 17}, {1, 9}, {9, 1}};
    for (const auto& [rows, columns] : kShapes) {
      for (const bool columns_first : {false, true}) {
        torch::manual_seed(1);
        auto theirs = torch::randn({rows, columns}, torch::kDouble);
        auto momentum = torch::zeros_like(theirs);
        auto mine = theirs.to(type);
        mine = columns_first ? mine.t().contiguous().t() : mine.clone();
        auto state = torch::zeros_like(mine);
        WholeParameter whole{{"p", mine.sizes().vec(), mine.strides().vec()},
                             type == torch::kDouble ? Dtype::kFloat64 : Dtype::kFloat32};
        for (int t = 1; t <= 10; ++t) {
          const auto gradient = torch::randn({rows, columns}, torch::kFloat);
          const auto g = gradient.to(torch::kDouble);
          momentum.lerp_(g, 0.05);
          theirs = theirs * (1 - 0.02 * 0.1) -
                   0.02 * std::sqrt(std::max(1.0, static_cast<double>(rows) / columns)) *
                       muon_direction(g.lerp(momentum, 0.95));
          const auto ordered = torch::empty_like(mine).copy_(gradient);
          ParameterSlice slice;
          slice.dtype = whole.dtype;
          slice.master = mine.data_ptr();
          slice.gradient = ordered.data_ptr();
          slice.states = {state.data_ptr()};
          slice.numel = mine.numel();
          slice.step = whole.step = t;
          slice.whole = &whole;
          ours.update(slice, {}, ours.learning_rate());
        }
        const double tolerance = type == torch::kDouble ? 1e-11 : 1e-4;
        EXPECT_TRUE(torch::allclose(mine.to(torch::kDouble), theirs, tolerance, tolerance))
            << type << " " << rows << " x " << columns << ": "
            << (mine - theirs).abs().max().item<double>();
      }
    }
  }
}

}  // namespace
}  // namespace trireme::torch_parity_test
