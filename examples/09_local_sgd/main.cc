// Local SGD: every rank trains a replica of its own, and every 16 steps they become their mean.
// Against averaging gradients in each step, a sixteenth of the bytes travels. The result is
// another one, and depends on the number of replicas; run again, it is the same, bit for bit.
//
//   cmake --build build/release --target examples
//   trireme run -n 4 -- build/release/bin/09_local_sgd

#include <cstdio>

#include <trireme/trireme.h>

#include <torch/torch.h>

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto world = trireme::init();
  trireme::Replicas replicas(world, {.ranks = 1});
  torch::nn::Sequential model(
      torch::nn::Linear(8, 128), torch::nn::Tanh(), torch::nn::Linear(128, 1));
  trireme::Engine engine(model, trireme::Sgd({.lr = 0.1}), {}, replicas.mine());
  // Or trireme::DiLoCo{.steps = 100}, or trireme::Gossip{}.
  trireme::Averaging averaging(engine, replicas, trireme::Local{.steps = 16});

  auto batch = [](int seed) {
    auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    auto x = torch::randn({64, 8}, random, torch::kFloat);
    return std::pair(x, torch::tanh(x.sum(1, true)));
  };
  for (int step = 0; step < 200; ++step) {
    auto [x, y] = batch(replicas.count() * step + replicas.number());
    engine.backward(torch::mse_loss(engine.forward(x), y));
    if (engine.step()) {
      averaging.step();
    }
  }

  averaging.with_mean([&] {
    torch::NoGradGuard no_grad;
    auto [x, y] = batch(-1);
    auto loss = torch::mse_loss(engine.forward(x), y).item<double>();
    if (world->rank() == 0) {
      std::printf("loss %.9f after %lld averagings, %lld bytes sent by each rank\n",
                  loss,
                  static_cast<long long>(averaging.use().averagings),
                  static_cast<long long>(averaging.use().sent_bytes));
    }
  });
}
