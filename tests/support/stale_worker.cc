// A program for tests to start as ranks: stale_worker FILE STEPS BOUND SERVERS REPLICAS trains with
// a parameter server, and writes the bits of the weights into FILE. What a rank computes depends on
// its generator, its buffers and its loss scale, which go on where they were.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "support/torch.h"
#include "trireme/comm/elastic.h"
#include "trireme/server/stale_engine.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor seen;

  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(7, 60));
    second = register_module("second", torch::nn::Linear(60, 3));
    seen = register_buffer("seen", torch::zeros({60}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor hidden = torch::dropout(torch::tanh(first(x)), 0.3, /*train=*/true);
    const torch::Tensor scores = second(hidden + 0.1 * seen);
    const torch::NoGradGuard no_grad;
    seen.mul_(0.9).add_(hidden.detach().mean(0), 0.1);
    return scores;
  }
};
TORCH_MODULE(Net);

int train(char** argv, const std::shared_ptr<trireme::World>& world) {
  const std::int64_t steps = std::atoll(argv[2]);
  const trireme::Stale stale{.bound = std::atoll(argv[3]),
                             .servers = std::atoi(argv[4]),
                             .replicas = std::atoi(argv[5]),
                             .engine = {.ema_decay = 0.5}};
  Net model;
  torch::manual_seed(static_cast<std::uint64_t>(100 + world->rank()));
  trireme::StaleEngine engine(model, trireme::AdamW({.lr = 1e-2}), stale, world);
  const auto keep = [&] {
    if (stale.replicas > 0) {
      engine.keep({{"step", std::to_string(engine.steps())}});
    }
  };
  if (engine.kept() && engine.kept()->at("step") != std::to_string(engine.steps())) {
    std::fprintf(stderr, "kept notes of another step\n");
    return 1;
  }
  keep();
  while (engine.computes() && engine.steps() < steps) {
    auto random = at::detail::createCPUGenerator(
        static_cast<std::uint64_t>(1000 * world->rank() + engine.steps()));
    const torch::Tensor x = torch::randn({5, 7}, random, torch::kFloat);
    engine.backward((engine.forward(x) - 0.5).pow(2).mean());
    engine.step();
    keep();
  }
  engine.finish();
  if (world->rank() == 0) {
    std::ofstream file(argv[1], std::ios::binary);
    for (const torch::Tensor& parameter : model->parameters()) {
      file.write(static_cast<const char*>(parameter.const_data_ptr()),
                 static_cast<std::streamsize>(parameter.nbytes()));
    }
  }
  world->barrier().wait();
  return 0;
}

}  // namespace

int main(int, char** argv) {
  torch::set_num_threads(1);
  return trireme::run_elastic(
      [&](const std::shared_ptr<trireme::World>& world) { return train(argv, world); });
}
