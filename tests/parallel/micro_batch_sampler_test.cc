// Data from torch::data: what each rank computes of it, and that it goes on where it was.

#include "trireme/parallel/micro_batch_sampler.h"

#include <numeric>
#include <sstream>

#include <gtest/gtest.h>

#include <torch/data.h>
#include <torch/optim/sgd.h>

#include "parallel/engine_worlds.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme::micro_batch_sampler_test {
namespace {

namespace nn = torch::nn;
using engine_worlds::contains;
using testing::message_of;
using torch::Tensor;

constexpr int kMicroBatches = 4;  // of a step

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(6, 5));
    second = register_module("second", nn::Linear(5, 3));
  }
  Tensor forward(const Tensor& x) {
    return second->forward(torch::tanh(first->forward(x))).pow(2).mean();
  }
};
TORCH_MODULE(Net);

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    torch::manual_seed(index);
    return {torch::randn({6}), torch::full({}, static_cast<float>(index))};
  }
  torch::optional<std::size_t> size() const override { return 43; }
};

// 43 samples in micro-batches of 3: in each of two epochs, three steps of 4.
TEST(DataLoaders, GoOnWhereTheyWere) {
  engine_worlds::everywhere(kMicroBatches, [](std::shared_ptr<World> world, EngineOptions options) {
    options.micro_batches = 2;  // fewer than ranks, where there are 3
    Net model;
    Engine engine(model, Sgd({.lr = 0.125}), options, world);
    const auto rest_of = [&](MicroBatchSampler& sampler) {
      std::vector<std::vector<std::size_t>> batches;
      while (const auto batch = sampler.next(5)) {
        batches.push_back(*batch);
      }
      return batches;
    };
    MicroBatchSampler whole(43, engine, {.seed = 5});
    whole.reset();
    whole.reset();
    EXPECT_EQ(whole.epoch(), 1);
    auto expected = rest_of(whole);
    EXPECT_EQ(expected.size(), static_cast<std::size_t>(4 * engine.local_micro_batches()));
    MicroBatchSampler sampler(43, engine, {.seed = 5});
    MicroBatchSampler copy = sampler;  // as a loader has one
    copy.reset();
    copy.reset();
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      EXPECT_EQ(*copy.next(5), expected[static_cast<std::size_t>(k)]);
    }
    expected.erase(expected.begin(), expected.begin() + engine.local_micro_batches());
    std::stringstream file;
    torch::serialize::OutputArchive out;
    sampler.save(out);
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    MicroBatchSampler loaded(43, engine, {.seed = 5});
    loaded.load(in);
    loaded.reset();
    EXPECT_EQ(rest_of(loaded), expected);
    // A rank without micro-batches has nothing to iterate over, and follows.
    auto data = Numbers().map(torch::data::transforms::Stack<>());
    auto loader = torch::data::make_data_loader(data, MicroBatchSampler(43, engine), 5);
    for (auto& batch : *loader) {
      engine.backward(engine.forward(batch.data));
      engine.step();
    }
    engine.join();
    EXPECT_EQ(engine.steps(), 4);
    if (world->size() == 2) {
      MicroBatchSampler dealt(43, engine);
      dealt.reset();
      engine.deal({2, 0});
      EXPECT_TRUE(
          contains(message_of<ConfigError>([&] { (void)dealt.next(5); }), "between epochs"));
    }
  });
}

TEST(DataLoaders, GiveEachRankItsMicroBatches) {
  constexpr std::size_t kSize = 3;
  engine_worlds::everywhere(
      kMicroBatches, [](std::shared_ptr<World> world, const EngineOptions& options) {
        Net model;
        Engine engine(model, Sgd({.lr = 0.125}), options, world);
        auto data = Numbers().map(torch::data::transforms::Stack<>());
        MicroBatchSampler sampler(43, engine, {.seed = 5});
        auto loader = torch::data::make_data_loader(data, sampler, kSize);
        std::vector<float> seen;
        for (int epoch = 0; epoch < 2; ++epoch) {
          for (auto& batch : *loader) {
            for (std::int64_t i = 0; i < batch.target.numel(); ++i) {
              seen.push_back(batch.target[i].item<float>());
            }
            engine.backward(engine.forward(batch.data));
            engine.step();
          }
        }
        EXPECT_EQ(engine.steps(), 6);
        // What all ranks have seen: in each epoch 36 different samples of 43.
        std::vector<float> padded(100, -1);
        padded[0] = static_cast<float>(seen.size());
        std::copy(seen.begin(), seen.end(), padded.begin() + 1);
        std::vector<float> all(padded.size() * static_cast<std::size_t>(world->size()));
        world->all_gather(padded, all).wait();
        std::vector<int> count(43, 0);
        int total = 0;
        for (int rank = 0; rank < world->size(); ++rank) {
          const float* of = all.data() + 100 * rank;
          for (int i = 1; i <= static_cast<int>(of[0]); ++i) {
            ++count[static_cast<std::size_t>(of[i])];
            ++total;
          }
        }
        EXPECT_EQ(total, 72);
        for (const int times : count) {
          EXPECT_LE(times, 2);
        }
        // The same weights whatever the number of ranks is: those of one process, which reads in
        // order.
        Net plain;
        torch::optim::SGD optimizer(plain->parameters(), 0.125);
        const auto order = [](int epoch) {
          std::vector<std::size_t> numbers(43);
          std::iota(numbers.begin(), numbers.end(), std::size_t{0});
          RandomStream random(mix(std::uint64_t{5}, static_cast<std::uint64_t>(epoch)));
          for (std::size_t left = 43; left > 1; --left) {
            std::swap(numbers[left - 1], numbers[random.below(left)]);
          }
          return numbers;
        };
        for (int epoch = 0; epoch < 2; ++epoch) {
          const auto numbers = order(epoch);
          for (std::size_t first = 0; first < 12; first += kMicroBatches) {
            optimizer.zero_grad();
            for (std::size_t m = first; m < first + kMicroBatches; ++m) {
              std::vector<Tensor> rows;
              for (std::size_t i = 0; i < kSize; ++i) {
                rows.push_back(Numbers().get(numbers[m * kSize + i]).data);
              }
              (plain->forward(torch::stack(rows)) / kMicroBatches).backward();
            }
            optimizer.step();
          }
        }
        const auto scope = engine.gathered();
        const auto found = model->named_parameters();
        for (const auto& parameter : plain->named_parameters()) {
          EXPECT_TRUE(torch::allclose(*found.find(parameter.key()), parameter.value(), 1e-5, 1e-7))
              << parameter.key();
        }
      });
}

}  // namespace
}  // namespace trireme::micro_batch_sampler_test
