// A program for tests to start as ranks: training_worker STAGE trains a model of several units
// until something ends it. Exits with 5 after a CommError, 6 after any other exception, with the
// message on standard error.

#include <cstdio>
#include <cstdlib>

#include "support/torch.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace {

constexpr int kLayers = 6;
constexpr std::int64_t kWidth = 192;

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) {
      x = torch::tanh(layer(x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

void train_forever(int stage) {
  at::set_num_threads(1);
  const auto world = trireme::init();
  trireme::EngineOptions options;
  options.zero = stage;
  options.accumulate = 2;
  options.unit_bytes = 1;  // each layer by itself: many moments at which a rank can be lost
  options.bucket_bytes = 64 << 10;
  trireme::Engine<Net> engine(
      std::make_shared<Net>(), trireme::AdamW({.lr = 1e-3}), options, world);
  const auto x = torch::randn({8, kWidth});
  for (bool first = true;;) {
    engine.backward(engine.forward(x).pow(2).mean());
    if (engine.step() && first) {
      std::printf("looping\n");
      std::fflush(stdout);
      first = false;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train_forever(argc > 1 ? std::atoi(argv[1]) : 0);
  } catch (const trireme::CommError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 6;
  }
}
