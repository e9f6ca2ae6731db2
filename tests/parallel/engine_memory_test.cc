// What engines and models built in parts take of a machine's memory.

#include <fstream>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <c10/core/CPUAllocator.h>

#include "parallel/engine_worlds.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"
#include "trireme/parallel/sharded_model.h"

namespace trireme::engine_memory_test {
namespace {

namespace nn = torch::nn;
using engine_worlds::contains;
using engine_worlds::in_every_mode;
using engine_worlds::in_world;
using engine_worlds::loss_of;
using engine_worlds::Wide;
using testing::message_of;
using torch::Tensor;

TEST(EngineMemory, HoldsNoMoreThanItsLimitOfGatheredParameters) {
  for (const Prefetch prefetch : {Prefetch::kOff, Prefetch::kOn}) {
    in_world(2, [&](std::shared_ptr<World> world) {
      Wide model;
      Wide plain;
      constexpr std::size_t kLayer = (512 * 512 + 512) * 4;
      Engine engine(model,
                    Sgd({.lr = 0.1}),
                    {.zero = 3,
                     .placement = Placement::kCopied,
                     .unit_bytes = 1 << 20,
                     .gather_bytes = 2 * kLayer + 4096,
                     .prefetch = prefetch},
                    world);
      Engine other(plain, Sgd({.lr = 0.1}), {}, world);
      for (int step = 0; step < 4; ++step) {
        const Tensor x = torch::full({8, 512}, 0.1 * (step + world->rank()));
        engine.backward(loss_of(engine.forward(x)));
        engine.step();
        other.backward(loss_of(other.forward(x)));
        other.step();
      }
      const auto gather = static_cast<std::size_t>(MemoryCategory::kGather);
      EXPECT_LE(engine.memory().peak[gather], static_cast<std::int64_t>(2 * kLayer + 4096));
      EXPECT_GE(engine.memory().peak[gather], static_cast<std::int64_t>(kLayer));
      EXPECT_TRUE(torch::equal(model->layers[3]->weight, plain->layers[3]->weight));
    });
  }
}

// Tensors in mappings of their own, which are the kernel's again when a tensor goes: LibTorch's
// allocators, of which builds have different ones, keep what was freed for later.
class MappedTensors final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = map(bytes);
    return {memory, memory, &unmap, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unmap; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr std::size_t kPage = 4096;  // in front, for the size

  static void* map(std::size_t bytes) {
    if (bytes == 0) {
      return nullptr;
    }
    bytes += kPage;
    void* const block =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
      throw std::bad_alloc();
    }
    *static_cast<std::size_t*>(block) = bytes;
    return static_cast<std::byte*>(block) + kPage;
  }

  static void unmap(void* memory) {
    if (memory != nullptr) {
      void* const block = static_cast<std::byte*>(memory) - kPage;
      munmap(block, *static_cast<std::size_t*>(block));
    }
  }
};

// This process's part of the memory that it has, without code.
std::int64_t proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::int64_t bytes = 0;
  for (std::string word; file >> word;) {
    if (word == "Pss_Anon:" || word == "Pss_Shmem:") {
      std::int64_t kilobytes = 0;
      file >> kilobytes;
      bytes += kilobytes * 1024;
    }
  }
  return bytes;
}

// The ledger, the formulas and the kernel agree.
TEST(EngineMemory, IsWhatTheFormulaSays) {
  for (const int size : {1, 2, 3}) {
    in_every_mode(size, [&](std::shared_ptr<World> world, int zero, Placement placement) {
      static MappedTensors allocator;
      c10::SetCPUAllocator(&allocator, /*priority=*/10);
      constexpr std::int64_t kParameters = 24 * (512 * 512 + 512) + 2 * 512;
      Wide model(24);
      {
        // What LibTorch keeps for itself is there before.
        Wide other(1);
        other->forward(torch::randn({4, 512})).sum().backward();
      }
      world->barrier().wait();
      // The model itself becomes the engine's: it is not in the difference.
      std::vector<std::int64_t> before = {proportional_bytes() - 4 * kParameters};
      world->all_reduce(before).wait();
      Engine engine(
          model,
          AdamW({.lr = 1e-3}),
          {.zero = zero, .placement = placement, .bucket_bytes = 1 << 20, .bucket_count = 2},
          world);
      for (int step = 0; step < 2; ++step) {
        engine.backward(loss_of(engine.forward(torch::randn({4, 512}))));
        engine.step();
      }
      const MemoryReport report = engine.memory_report();
      std::int64_t total = 0;
      for (const MemoryUse& use : report.ranks) {
        EXPECT_NEAR(static_cast<double>(use.model_bytes()),
                    static_cast<double>(report.predicted_bytes),
                    0.01 * static_cast<double>(report.predicted_bytes))
            << report.to_string();
        EXPECT_LE(use.of(MemoryCategory::kBuckets), 2 << 20);
        total += use.total();
      }
      std::vector<std::int64_t> after = {proportional_bytes()};
      world->all_reduce(after).wait();
      const auto grown = static_cast<double>(after[0] - before[0]);
      // A copy of the parameters, or of the gradients, would be 25 MB on each rank.
      EXPECT_NEAR(grown, static_cast<double>(total), 0.05 * static_cast<double>(total))
          << report.to_string();
      world->barrier().wait();
    });
  }
}

// Of a matrix a number for each row and column, on every rank; of the bias one for each element.
TEST(EngineMemory, AdafactorTakesNextToNoMemory) {
  in_every_mode(2, [](std::shared_ptr<World> world, int zero, Placement placement) {
    torch::nn::Linear model(512, 256);
    Engine engine(model, Adafactor(), {.zero = zero, .placement = placement}, world);
    engine.backward(loss_of(engine.forward(torch::randn({4, 512}))));
    engine.step();
    const std::int64_t bytes = engine.memory().of(MemoryCategory::kOptimizer);
    EXPECT_GE(bytes, 4 * (512 + 256));
    EXPECT_LE(bytes, 4 * (512 + 256 + 256 + 16)) << "a padding of 16 at most";
    EXPECT_LE(engine.memory().model_bytes(), engine.memory_report().predicted_bytes + 4096);
  });
}

TEST(ShardedModel, IsBuiltInPartsWithTheSameBits) {
  for (const int size : {1, 3}) {
    in_every_mode(size, [&](std::shared_ptr<World> world, int zero, Placement placement) {
      Wide reference(8);
      auto model = build_sharded(*world, [] { return Wide(8); });
      EXPECT_TRUE(torch::equal(model->layers[5]->weight, reference->layers[5]->weight));
      EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                             const torch::NoGradGuard no_grad;
                             model->layers[2]->weight.zero_();
                           }),
                           "layer2.weight"));
      Engine engine(model, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement}, world);
      Engine other(reference, Sgd({.lr = 0.1}), {.zero = zero, .placement = placement}, world);
      for (auto* each : {&engine, &other}) {
        each->backward(loss_of(each->forward(torch::full({4, 512}, 0.3))));
        each->step();
      }
      for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_TRUE(torch::equal(model->layers[i]->weight, reference->layers[i]->weight));
        EXPECT_TRUE(torch::equal(model->layers[i]->bias, reference->layers[i]->bias));
      }
    });
  }
}

std::int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  std::int64_t kilobytes = 0;
  while (file >> word) {
    if (word == "RssAnon:") {
      file >> kilobytes;
      break;
    }
  }
  return kilobytes * 1024;
}

struct BigImpl : nn::Module {
  std::vector<nn::Linear> layers;
  std::int64_t most = 0;
  BigImpl() {
    torch::manual_seed(9);
    for (int i = 0; i < 12; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(2048, 2048)));
      most = std::max(most, anonymous_bytes());
    }
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) {
      x = torch::relu(layer->forward(x));
    }
    return x;
  }
};
TORCH_MODULE(Big);

TEST(ShardedModel, NeverHoldsMoreThanOneParameterWhole) {
  in_world(2, [](std::shared_ptr<World> world) {
    const std::int64_t before = anonymous_bytes();
    auto model = build_sharded(*world, [] { return Big(); });
    constexpr std::int64_t kLayer = 2048 * 2048 * 4;  // 16 MiB; the model has twelve
    EXPECT_LT(model->most - before, 3 * kLayer);
    Engine engine(model, Sgd({.lr = 0.1}), {.zero = 3}, world);
    EXPECT_LT(anonymous_bytes() - before, 12 * kLayer);
    engine.backward(loss_of(engine.forward(torch::full({4, 2048}, 0.3))));
    engine.step();
    // Gradients of the half that this rank owns, and buckets; parameters are shared memory.
    EXPECT_LT(anonymous_bytes() - before, 10 * kLayer);
  });
}

}  // namespace
}  // namespace trireme::engine_memory_test
