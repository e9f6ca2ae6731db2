// Trains with ZeRO-3 and saves checkpoints in the background. Killed at any moment and started
// again, on any number of ranks, it resumes from the last checkpoint and ends with the same loss as
// an uninterrupted run, to the last digit.
//
//   cmake --build build/release --target examples
//   trireme run -n 2 -- build/release/bin/04_resume calm
//   trireme run -n 2 -- build/release/bin/04_resume struck 130   # dies before step 130
//   trireme run -n 3 -- build/release/bin/04_resume struck       # resumes

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

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

// The loss on points of two spirals. They depend on the step and the number of the micro-batch
// alone, so the step is all there is to know about our position in the data.
torch::Tensor loss_of(trireme::Engine<NetImpl>& engine, std::int64_t step, std::int64_t m) {
  auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * step + m));
  auto t = torch::rand({64}, random, torch::kFloat) * 3 + 0.2;
  auto labels = torch::randint(0, 2, {64}, random, torch::kLong);
  auto angle = 2 * t + 3.14159 * labels;
  auto points = torch::stack({t * torch::cos(angle), t * torch::sin(angle)}, 1);
  return nn::functional::cross_entropy(engine.forward(points), labels);
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "checkpoints";
  const std::int64_t dies_before = argc > 2 ? std::atoll(argv[2]) : -1;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto world = trireme::init();
  Net model;
  constexpr std::int64_t kSteps = 200;
  trireme::Engine engine(
      model,
      trireme::AdamW({.lr = 3e-3}),
      {.zero = 3, .micro_batches = 12, .schedule = trireme::Schedule::cosine(kSteps)},
      world);

  // Every rank writes its own part, in the background; the two newest checkpoints are kept.
  trireme::Checkpoints checkpoints(folder, world, {.retention = {.keep_last = 2}});
  if (const auto resumed = checkpoints.resume(engine); resumed && world->rank() == 0) {
    std::printf("resuming after step %lld, saved by %d ranks\n",
                static_cast<long long>(resumed->step),
                resumed->ranks);
  }
  for (auto step = engine.steps(); step < kSteps; ++step) {
    if (step == dies_before) {
      std::raise(SIGKILL);
    }
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(loss_of(engine, step, engine.micro_batch(k)));
      engine.step();
    }
    if (engine.steps() % 20 == 0) {
      checkpoints.save(engine);  // weights, optimizer states, schedule, everything
    }
  }
  checkpoints.finish();

  auto loss = loss_of(engine, kSteps, 0).item<double>();
  if (world->rank() == 0) {
    std::printf("loss %.17g\n", loss);
  }
}
