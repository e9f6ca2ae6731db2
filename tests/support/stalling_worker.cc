// A program for tests to start as ranks: stalling_worker MODE FILE trains a small model and keeps
// its state. In step 5 one rank, the one with the highest number, does what MODE says: "calm"
// nothing, "loop" computes for ever, the first time (FILE remembers), "silent" sleeps for
// eight seconds, "long" for five, in which it says that it is alive, "talk" prints 4 MB. Rank 0
// prints a fingerprint of the weights.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "support/torch.h"
#include "trireme/comm/elastic.h"
#include "trireme/parallel/engine.h"
#include "trireme/train/elastic_state.h"

namespace {

using Clock = std::chrono::steady_clock;

void delay(const std::string& mode, const std::string& file, const trireme::EngineBase& engine) {
  if (mode == "loop") {
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
    volatile std::uint64_t count = 0;
    while (fd >= 0) {
      count = count + 1;
    }
  } else if (mode == "silent") {
    std::printf("silent\n");
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::seconds(8));
  } else if (mode == "talk") {
    const std::string line(999, 'x');
    for (int i = 0; i < 4000; ++i) {
      std::puts(line.c_str());
    }
  } else if (mode == "long") {
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (Clock::now() < end) {
      engine.alive();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

int train(const std::string& mode,
          const std::string& file,
          const std::shared_ptr<trireme::World>& world) {
  constexpr std::int64_t kSteps = 12;
  torch::manual_seed(3);
  auto model = std::make_shared<torch::nn::LinearImpl>(8, 8);
  trireme::Engine<torch::nn::LinearImpl> engine(
      model, trireme::AdamW({.lr = 1e-2}), {.zero = 1, .micro_batches = 12}, world);
  trireme::ElasticState state(engine, world);
  while (engine.steps() < kSteps) {
    const std::int64_t step = engine.steps();
    if (step == 5 && world->rank() == world->size() - 1 && world->size() > 1) {
      delay(mode, file, engine);
    }
    for (auto m = world->rank(); m < engine.micro_batches(); m += world->size()) {
      const auto x = torch::full({2, 8}, 0.01 * static_cast<double>(step + m));
      engine.backward(engine.forward(x).pow(2).mean());
      engine.step();
    }
    state.keep();
  }
  const auto scope = engine.gathered();
  std::uint64_t fingerprint = 0xCBF29CE484222325;
  for (const auto& parameter : model->parameters()) {
    const auto* bytes = static_cast<const unsigned char*>(parameter.const_data_ptr());
    for (std::size_t i = 0; i < parameter.nbytes(); ++i) {
      fingerprint = (fingerprint ^ bytes[i]) * 0x100000001B3;
    }
  }
  if (world->rank() == 0) {
    std::printf("weights %016llx\n", static_cast<unsigned long long>(fingerprint));
  }
  return 0;
}

}  // namespace

int main(int /*argc*/, char** argv) {
  at::set_num_threads(1);
  return trireme::run_elastic(
      [&](const std::shared_ptr<trireme::World>& world) { return train(argv[1], argv[2], world); });
}
