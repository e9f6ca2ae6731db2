// A program for tests to start as ranks: stale_worker FILE STEPS BOUND SERVERS REPLICAS ENGINES
// trains as many models, each with a parameter server, and writes the bits of their weights into
// FILE. What a rank computes depends on its generator, its buffers and its loss scale, which go on
// where they were. Of the second model most is frozen, so that some ranks own nothing. Without
// servers, all go on from the newest weights now and then.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/torch.h"
#include "trireme/comm/elastic.h"
#include "trireme/server/stale_engine.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor seen;

  explicit NetImpl(bool frozen) {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(7, 60));
    second = register_module("second", torch::nn::Linear(60, frozen ? 1 : 3));
    seen = register_buffer("seen", torch::zeros({60}));
    for (torch::Tensor& parameter : first->parameters()) {
      parameter.set_requires_grad(!frozen);
    }
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
  constexpr std::int64_t kFromNewest = 7;  // steps
  const std::int64_t steps = std::atoll(argv[2]);
  const trireme::Stale stale{.bound = std::atoll(argv[3]),
                             .servers = std::atoi(argv[4]),
                             .replicas = std::atoi(argv[5]),
                             .engine = {.ema_decay = 0.5}};
  std::vector<Net> models;
  std::vector<std::unique_ptr<trireme::StaleEngine<NetImpl>>> engines;
  const auto keep = [&](trireme::StaleEngine<NetImpl>& engine) {
    if (stale.replicas > 0) {
      engine.keep({{"step", std::to_string(engine.steps())}});
    }
  };
  for (int i = 0; i < std::atoi(argv[6]); ++i) {
    models.emplace_back(/*frozen=*/i == 1);
    torch::manual_seed(static_cast<std::uint64_t>(100 + world->rank()));
    engines.push_back(std::make_unique<trireme::StaleEngine<NetImpl>>(
        models.back(), trireme::AdamW({.lr = 1e-2}), stale, world));
    trireme::StaleEngine<NetImpl>& engine = *engines.back();
    if (engine.kept() && engine.kept()->at("step") != std::to_string(engine.steps())) {
      std::fprintf(stderr, "kept notes of another step\n");
      return 1;
    }
    keep(engine);
    // One after the other: what a rank draws follows from the engine's steps alone.
    while (engine.computes() && engine.steps() < steps) {
      auto random = at::detail::createCPUGenerator(
          static_cast<std::uint64_t>(1000 * world->rank() + engine.steps()));
      const torch::Tensor x = torch::randn({5, 7}, random, torch::kFloat);
      engine.backward((engine.forward(x) - 0.5).pow(2).mean());
      engine.step();
      keep(engine);
      if (stale.servers == 0 && engine.steps() % kFromNewest == 0) {
        engine.go_on_from_newest();
        keep(engine);
      }
    }
    engine.finish();
  }
  if (world->rank() == 0) {
    std::ofstream file(argv[1], std::ios::binary);
    for (const Net& model : models) {
      for (const torch::Tensor& parameter : model->parameters()) {
        file.write(static_cast<const char*>(parameter.const_data_ptr()),
                   static_cast<std::streamsize>(parameter.nbytes()));
      }
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
