// Stale training of embeddings whose gradients are rows, against plain LibTorch and the synchronous
// engine.

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include "average/loose_training.h"
#include "trireme/core/error.h"
#include "trireme/server/stale_engine.h"

namespace trireme::stale_rows_test {
namespace {

using detail::concat;
using testing::flat;
using testing::in_loose_world;
using testing::same_bits;

using World = std::shared_ptr<trireme::World>;

constexpr std::int64_t kRows = 41;
constexpr std::int64_t kWidth = 6;
constexpr std::int64_t kBatch = 5;

struct WordsImpl : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear scores{nullptr};
  explicit WordsImpl(bool sparse = true, std::uint64_t seed = 5) {
    torch::manual_seed(seed);
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(sparse)));
    scores = register_module("scores", torch::nn::Linear(kWidth, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return scores(words(x)); }
};
TORCH_MODULE(Words);

// Different rows of a step's batch of a rank.
torch::Tensor words_of(int rank, int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * rank + step));
  return torch::randperm(kRows, generator, torch::kLong).slice(0, 0, kBatch);
}

template <class Forward>
torch::Tensor loss_of(const Forward& forward, int rank, int step) {
  return (forward(words_of(rank, step)) - 0.5).pow(2).mean();
}

void dawdle(int rank, int step, int run) {
  std::this_thread::sleep_for(
      std::chrono::microseconds((rank * 7 + step * 5 + run * 11) % 13 * 200));
}

std::vector<float> trained(
    const World& world, const Optimizer& optimizer, const Stale& stale, int steps, int run = 0) {
  Words model(true, static_cast<std::uint64_t>(5 + world->rank()));
  StaleEngine engine(model, optimizer, stale, world);
  for (int step = 0; step < steps && engine.computes(); ++step) {
    dawdle(world->rank(), step, run);
    engine.backward(
        loss_of([&](const torch::Tensor& x) { return engine.forward(x); }, world->rank(), step));
    engine.step();
  }
  engine.finish();
  return flat(model->parameters());
}

// By LibTorch with dense gradients, in one process: SGD with a rate that is a power of two.
std::vector<float> reference(int workers, std::int64_t bound, int steps) {
  Words model(false);
  std::vector<std::vector<torch::Tensor>> history;
  const torch::NoGradGuard no_grad;
  const auto put = [&](const std::vector<torch::Tensor>& values) {
    for (std::size_t p = 0; p < values.size(); ++p) {
      model->parameters()[p].copy_(values[p]);
    }
  };
  for (int step = 0; step < steps; ++step) {
    history.emplace_back();
    for (const torch::Tensor& parameter : model->parameters()) {
      history.back().push_back(parameter.detach().clone());
    }
    put(history[static_cast<std::size_t>(std::max<std::int64_t>(0, step - bound))]);
    std::vector<torch::Tensor> sums;
    for (int worker = 0; worker < workers; ++worker) {
      {
        const torch::AutoGradMode grad(true);
        loss_of([&](const torch::Tensor& x) { return model->forward(x); }, worker, step).backward();
      }
      std::size_t at = 0;
      for (const torch::Tensor& parameter : model->parameters()) {
        if (worker == 0) {
          sums.push_back(parameter.grad().clone());
        } else {
          sums[at] += parameter.grad();
        }
        ++at;
        parameter.mutable_grad().reset();
      }
    }
    put(history.back());
    std::size_t at = 0;
    for (torch::Tensor parameter : model->parameters()) {
      parameter.sub_(sums[at++] / workers * 0.125);
    }
  }
  return flat(model->parameters());
}

TEST(StaleRows, ClockOrderIsAPlainLoopWithDenseGradients) {
  for (const std::int64_t bound : {0, 1, 3}) {
    for (const int servers : {0, 2}) {
      SCOPED_TRACE(concat("bound ", bound, ", servers ", servers));
      const auto expected = reference(2, bound, 15);
      in_loose_world(2 + servers, [&](const World& world) {
        for (const int run : {0, 1}) {
          EXPECT_TRUE(same_bits(
              trained(world, Sgd({.lr = 0.125}), {.bound = bound, .servers = servers}, 15, run),
              expected));
        }
      });
    }
  }
}

// Also where all rows move in every step, and where only those that were touched do.
TEST(StaleRows, BoundZeroIsTheSynchronousEngine) {
  in_loose_world(3, [&](const World& world) {
    for (const SparseUpdate update : {SparseUpdate::kExact, SparseUpdate::kLazy}) {
      for (const double clip : {0.0, 1e6}) {
        const EngineOptions options{.clip_norm = clip, .sparse_update = update};
        const AdamW adam({.lr = 1e-2});
        Words exact_model;
        Engine exact(exact_model, adam, options, world);
        Words model;
        StaleEngine engine(model, adam, {.engine = options}, world);
        for (int step = 0; step < 8; ++step) {
          const auto train = [&](auto& its) {
            its.backward(loss_of(
                [&](const torch::Tensor& x) { return its.forward(x); }, world->rank(), step));
            its.step();
          };
          train(exact);
          train(engine);
        }
        EXPECT_TRUE(same_bits(flat(model->parameters()), flat(exact_model->parameters())));
        engine.finish();
      }
    }
  });
}

TEST(StaleRows, ArrivalsAreReplayed) {
  const auto folder = std::filesystem::temp_directory_path() / concat("stale-rows-", getpid());
  for (const int servers : {0, 1}) {
    const Stale recorded{.bound = Stale::kNoBound,
                         .order = Order::kArrival,
                         .servers = servers,
                         .record = folder / std::to_string(servers)};
    in_loose_world(3, [&](const World& world) {
      const Adagrad adagrad({.lr = 0.1});
      const auto first = trained(world, adagrad, recorded, 20);
      Stale replayed = recorded;
      replayed.record.clear();
      replayed.replay = recorded.record;
      EXPECT_TRUE(same_bits(trained(world, adagrad, replayed, 20, 5), first));
    });
  }
  std::filesystem::remove_all(folder);
}

// To the one owner of everything: the gradients of the dense parameters, and of the embedding the
// rows alone, with their numbers.
TEST(StaleRows, SendsRowsAlone) {
  in_loose_world(2, [&](const World& world) {
    Words model;
    StaleEngine engine(model, Sgd({.lr = 0.1}), {.bound = 1, .servers = 1}, world);
    constexpr std::int64_t kSteps = 4;
    for (int step = 0; step < kSteps && engine.computes(); ++step) {
      engine.backward(
          loss_of([&](const torch::Tensor& x) { return engine.forward(x); }, world->rank(), step));
      engine.step();
    }
    if (engine.computes()) {
      const std::int64_t dense = 4 * (32 + 16);  // 18 and 3 numbers, in whole lines of the cache
      const std::int64_t rows = 8 + kBatch * (8 + 4 * kWidth);  // how many, and each
      const std::int64_t head = 5 * 8 + 3;  // and of each parameter, whether it has a gradient
      EXPECT_EQ(engine.sent_bytes(), kSteps * (head + dense + rows));
    }
    engine.finish();
  });
}

TEST(StaleRows, RefusesRowsWithALargestNorm) {
  in_loose_world(1, [&](const World& world) {
    torch::nn::Embedding model(torch::nn::EmbeddingOptions(7, 3).max_norm(1.0));
    EXPECT_NE(testing::message_of<ConfigError>([&] {
                StaleEngine engine(model, Sgd({.lr = 0.1}), {}, world);
              }).find("max_norm"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace trireme::stale_rows_test
