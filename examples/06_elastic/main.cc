// 03_zero in an elastic job: kill any of its ranks, at any time. The others go on, no step is lost,
// and the fingerprint at the end is that of 03_zero, bit for bit.
//
//   cmake --build build/release --target examples
//   trireme run --elastic 1:3 -- build/release/bin/06_elastic

#include <cstdint>
#include <cstdio>

#include <trireme/trireme.h>

#include <torch/torch.h>

namespace nn = torch::nn;

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, third{nullptr};

  NetImpl() {
    first = register_module("first", nn::Linear(2, 256));
    second = register_module("second", nn::Linear(256, 256));
    third = register_module("third", nn::Linear(256, 2));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(first->forward(x));
    x = torch::tanh(second->forward(x));
    return third->forward(x);
  }
};
TORCH_MODULE(Net);

struct Batch {
  torch::Tensor points, labels;
};

// Points of two spirals. Micro-batch m of a step holds the same ones for any number of ranks.
Batch spirals(std::int64_t step, std::int64_t m) {
  auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * step + m));
  auto t = torch::rand({64}, random, torch::kFloat) * 3 + 0.2;
  auto labels = torch::randint(0, 2, {64}, random, torch::kLong);
  auto angle = 2 * t + 3.14159 * labels;
  auto noise = torch::randn({64, 2}, random, torch::kFloat) * 0.05;
  return {torch::stack({t * torch::cos(angle), t * torch::sin(angle)}, 1) + noise, labels};
}

constexpr int kSteps = 120;

int train(const std::shared_ptr<trireme::World>& world) {
  torch::manual_seed(1);
  Net model;
  trireme::Engine engine(
      model, trireme::AdamW({.lr = 3e-3}), {.zero = 3, .micro_batches = 12}, world);
  trireme::ElasticState state(engine, world);  // goes on where the ranks before had been

  while (engine.steps() < kSteps) {
    const auto step = engine.steps();
    // A step has 12 micro-batches; this rank computes its share of them.
    for (auto m = world->rank(); m < engine.micro_batches(); m += world->size()) {
      auto batch = spirals(step, m);
      auto loss = nn::functional::cross_entropy(engine.forward(batch.points), batch.labels);
      engine.backward(loss);
      engine.step();  // updates the parameters when the step's last micro-batch is done
      if (world->rank() == 0 && m == 0 && step % 20 == 0) {
        std::printf("step %3ld  loss %.6f  ranks %d\n", step, loss.item<double>(), world->size());
        std::fflush(stdout);
      }
    }
    state.keep();
  }

  auto test = spirals(kSteps, 0);
  auto right = (engine.forward(test.points).argmax(1) == test.labels).sum().item<int>();
  auto scope = engine.gathered();  // the whole parameters, at any stage
  std::uint64_t fingerprint = 0xCBF29CE484222325;
  for (const auto& parameter : model->parameters()) {
    const auto* bytes = static_cast<const unsigned char*>(parameter.const_data_ptr());
    for (std::size_t i = 0; i < parameter.nbytes(); ++i) {
      fingerprint = (fingerprint ^ bytes[i]) * 0x100000001B3;
    }
  }
  if (world->rank() == 0) {
    std::printf("%d of 64 right, fingerprint of all parameters %016llx\n",
                right,
                static_cast<unsigned long long>(fingerprint));
  }
  return 0;
}

int main() {
  // LibTorch's own sums depend on its threads; the same number everywhere gives the same bits.
  torch::set_num_threads(1);
  return trireme::run_elastic(train);
}
