// Ten thousand steps: what a rank holds at the end it held after a thousand, memory and
// descriptors.

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/parallel/engine.h"

namespace trireme {
namespace {

constexpr int kWarm = 1'000;
constexpr int kSteps = 10'000;
// Of 9,000 steps: a step that forgets 200 bytes is found.
constexpr std::int64_t kMostBytes = 1'800'000;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, sometimes{nullptr}, last{nullptr};
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(6, 10));
    sometimes = register_module("sometimes", torch::nn::Linear(10, 10));
    last = register_module("last", torch::nn::Linear(10, 2));
  }
  torch::Tensor forward(const torch::Tensor& x, bool detour) {
    auto h = torch::tanh(first->forward(x));
    return last->forward(detour ? torch::tanh(sometimes->forward(h)) : h);
  }
};
TORCH_MODULE(Net);

struct Held {
  std::int64_t bytes = 0;
  std::int64_t descriptors = 0;
};

Held held() {
  malloc_trim(0);  // what the allocator only keeps for later is not held
  Held now;
  std::int64_t total = 0;
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  now.bytes = pages * sysconf(_SC_PAGESIZE);
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++now.descriptors;
  }
  return now;
}

struct Mode {
  const char* name;
  EngineOptions options;
};

TEST(Growth, TenThousandStepsHoldWhatAThousandDid) {
  const std::vector<Mode> modes = {
      {"DDP", {.zero = 0}},
      {"ZeRO-2", {.zero = 2}},
      {"ZeRO-3 mapped", {.zero = 3, .placement = Placement::kMapped}},
      {"ZeRO-3 copied",
       {.zero = 3, .placement = Placement::kCopied, .unit_bytes = 64, .prefetch = Prefetch::kOn}},
      {"float16 ZeRO-2, clipped", {.zero = 2, .clip_norm = 1, .precision = Precision::kFloat16}},
  };
  for (const Mode& mode : modes) {
    testing::fork_ranks(2, [&, job = testing::unique_job()](int rank) {
      at::set_num_threads(1);
      const auto world = init(testing::options_for(job, rank, 2));
      Net net;
      Engine engine(net, AdamW({.lr = 1e-3}), mode.options, world);
      const auto type = net->first->weight.scalar_type();
      Held warm;
      for (int step = 1; step <= kSteps; ++step) {
        const auto x = torch::full({4, 6}, 0.01 * (step % 7 + rank)).to(type);
        const auto out = engine.forward(x, step % 3 == rank).to(torch::kFloat);
        engine.backward((out - 0.5).pow(2).mean());
        engine.step();
        if (step == kWarm) {
          warm = held();
        }
      }
      const Held end = held();
      std::printf("%s, rank %d: %+lld bytes of %lld in %d steps\n",
                  mode.name,
                  rank,
                  static_cast<long long>(end.bytes - warm.bytes),
                  static_cast<long long>(warm.bytes),
                  kSteps - kWarm);
      EXPECT_LE(end.bytes - warm.bytes, kMostBytes) << mode.name << ", rank " << rank;
      EXPECT_EQ(end.descriptors, warm.descriptors) << mode.name << ", rank " << rank;
    });
  }
}

}  // namespace
}  // namespace trireme
