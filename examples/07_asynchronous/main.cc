// A parameter server whose servers are the ranks themselves: each owns a part of the weights, gets
// everybody's gradients of it, and hands out new values. Nobody waits for the slowest rank in every
// step, as long as it is at most 3 steps behind. With Order::kClock the result does not depend on
// who was slow: run again, it is the same, bit for bit.
//
//   cmake --build build/release --target examples
//   trireme run -n 4 -- build/release/bin/07_asynchronous

#include <chrono>
#include <cstdio>
#include <thread>

#include <trireme/trireme.h>

#include <torch/torch.h>

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto world = trireme::init();
  torch::nn::Sequential model(
      torch::nn::Linear(8, 128), torch::nn::Tanh(), torch::nn::Linear(128, 1));
  // Or {.bound = trireme::Stale::kNoBound, .order = trireme::Order::kArrival}: asynchronous.
  trireme::StaleEngine engine(model, trireme::Sgd({.lr = 0.05}), {.bound = 3}, world);

  auto batch = [](int seed) {
    auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    auto x = torch::randn({64, 8}, random, torch::kFloat);
    return std::pair(x, torch::tanh(x.sum(1, true)));
  };
  for (int step = 0; step < 200; ++step) {
    if ((step + world->rank()) % 20 == 0) {  // now and then, a rank is slow
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    auto [x, y] = batch(world->size() * step + world->rank());
    engine.backward(torch::mse_loss(engine.forward(x), y));
    engine.step();
  }
  engine.finish();

  torch::NoGradGuard no_grad;
  auto [x, y] = batch(-1);
  auto loss = torch::mse_loss(engine.forward(x), y).item<double>();
  if (world->rank() == 0) {
    std::printf("loss %.9f after %d steps of %d ranks\n", loss, 200, world->size());
  }
}
