// Embeddings with max_norm: the rows that a step looks up are scaled down as LibTorch scales them,
// once in the step, whatever the stage and the number of ranks. What is expected is computed with
// LibTorch alone.

#include <limits>

#include <gtest/gtest.h>

#include <torch/optim/sgd.h>

#include "parallel/engine_worlds.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/engine.h"

namespace trireme::bounded_rows_test {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using engine_worlds::contains;
using testing::message_of;
using torch::Tensor;

constexpr std::int64_t kMicroBatches = 6;
constexpr int kSteps = 4;
constexpr std::int64_t kRows = 23;
constexpr std::int64_t kWidth = 5;  // no multiple of what ranges are made of: rows are divided
constexpr double kMost = 0.75;

struct WordsImpl : nn::Module {
  nn::Embedding table{nullptr};
  nn::Linear head{nullptr};
  explicit WordsImpl(bool sparse = false, double norm_type = 2, bool bounded = true) {
    torch::manual_seed(11);
    auto options = nn::EmbeddingOptions(kRows, kWidth).sparse(sparse).norm_type(norm_type);
    if (bounded) {
      options.max_norm(kMost);
    }
    table = register_module("table", nn::Embedding(options));
    head = register_module("head", nn::Linear(kWidth, 3));
  }
  Tensor forward(const Tensor& ids) { return head->forward(table->forward(ids)).pow(2).mean(); }
};
TORCH_MODULE(Words);

// With repetitions; the last rows are never looked up.
Tensor ids_of(std::int64_t step, std::int64_t micro_batch) {
  torch::manual_seed(static_cast<std::uint64_t>(50 * step + micro_batch));
  return torch::randint(kRows - 4, {2, 3}, torch::kLong);
}

// One process: the rows of a step are scaled by LibTorch before it, and looked up as they are.
struct Plain {
  explicit Plain(double norm_type = 2) : model(false, norm_type, /*bounded=*/false) {
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.25));
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Tensor> ids;
      for (std::int64_t m = 0; m < kMicroBatches; ++m) {
        ids.push_back(ids_of(step, m).flatten());
      }
      {
        const torch::NoGradGuard no_grad;
        torch::embedding_renorm_(model->table->weight, torch::cat(ids), kMost, norm_type);
      }
      std::vector<Tensor> sums;
      for (std::int64_t m = 0; m < kMicroBatches; ++m) {
        optimizer.zero_grad();
        model->forward(ids_of(step, m)).backward();
        const auto parameters = model->parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          m == 0 ? sums.push_back(parameters[i].grad().clone())
                 : (void)sums[i].add_(parameters[i].grad());
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        model->parameters()[i].mutable_grad() = sums[i] / kMicroBatches;
      }
      optimizer.step();
    }
  }
  Words model;
};

void train(Engine<WordsImpl>& engine, int steps = kSteps) {
  for (int step = 0; step < steps; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(engine.forward(ids_of(step, engine.micro_batch(k))));
      engine.step();
    }
  }
}

void expect_bits(Engine<WordsImpl>& engine, WordsImpl& expected) {
  const auto scope = engine.gathered();
  const auto found = engine.model().named_parameters();
  for (const auto& parameter : expected.named_parameters()) {
    EXPECT_TRUE(torch::equal(*found.find(parameter.key()), parameter.value())) << parameter.key();
  }
}

TEST(BoundedRows, AreScaledAsLibTorchScalesThemAtEveryStage) {
  for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    Plain plain(norm_type);
    engine_worlds::everywhere(
        kMicroBatches, [&](std::shared_ptr<World> world, const EngineOptions& options) {
          for (const bool sparse : {false, true}) {
            SCOPED_TRACE(detail::concat("norm ", norm_type, sparse ? ", sparse" : ""));
            Words model(sparse, norm_type);
            Engine engine(model, Sgd({.lr = 0.25}), options, world);
            train(engine);
            expect_bits(engine, *plain.model);
          }
        });
  }
}

// LibTorch by itself scales rows again in each micro-batch that looks them up, which changes what
// the first time has rounded up.
TEST(BoundedRows, AreThoseOfAProcessThatGoesThroughTheMicroBatches) {
  Words eager;
  torch::optim::SGD optimizer(eager->parameters(),
                              torch::optim::SGDOptions(0.25).momentum(0.5).weight_decay(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      (eager->forward(ids_of(step, m)) / static_cast<double>(kMicroBatches)).backward();
    }
    optimizer.step();
  }
  engine_worlds::everywhere(
      kMicroBatches, [&](std::shared_ptr<World> world, const EngineOptions& options) {
        Words model;
        Engine engine(
            model, Sgd({.lr = 0.25, .momentum = 0.5, .weight_decay = 0.1}), options, world);
        train(engine);
        const auto scope = engine.gathered();
        const auto found = model->named_parameters();
        for (const auto& parameter : eager->named_parameters()) {
          EXPECT_TRUE(torch::allclose(*found.find(parameter.key()), parameter.value(), 1e-5, 1e-6))
              << parameter.key();
        }
      });
}

TEST(BoundedRows, HaveTheSameBitsInHalfPrecisionAtEveryStage) {
  for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
    engine_worlds::everywhere(
        kMicroBatches, [&](std::shared_ptr<World> world, EngineOptions options) {
          options.precision = precision;
          EngineOptions alone = options;
          alone.zero = 0;
          alone.placement = Placement::kAutomatic;
          Words first, model;
          Engine expected(first, AdamW({.lr = 0.05}), alone, world->split(world->rank(), 0));
          Engine engine(model, AdamW({.lr = 0.05}), options, world);
          train(expected);
          train(engine);
          const auto one = expected.gathered();
          const auto other = engine.gathered();
          EXPECT_TRUE(torch::equal(model->table->weight, first->table->weight));
        });
  }
}

// What looks up without training, and a step that is dropped, leave the weight as it is.
TEST(BoundedRows, AreLeftAloneByEvaluationAndBySkippedSteps) {
  Words plain(false, 2, /*bounded=*/false);
  const Tensor before = plain->table->weight.detach().clone();
  Tensor scaled = before.clone();
  torch::embedding_renorm_(scaled, torch::arange(kRows), kMost, 2.0);
  ASSERT_FALSE(torch::equal(before, scaled));
  engine_worlds::everywhere(
      kMicroBatches, [&](std::shared_ptr<World> world, const EngineOptions& options) {
        Words model;
        Engine engine(model, Sgd({.lr = 0.25}), options, world);
        {
          const torch::NoGradGuard no_grad;
          const Tensor all = model->table->forward(torch::arange(kRows));
          EXPECT_TRUE(torch::equal(all, scaled));
        }
        engine.backward(engine.forward(ids_of(0, 0)));
        engine.drop();
        {
          const auto scope = engine.gathered();
          EXPECT_TRUE(torch::equal(model->table->weight, before));
        }
        // Frozen for good, it is looked up in the same way, and never written.
        Words frozen;
        frozen->table->weight.requires_grad_(false);
        Engine other(frozen, Sgd({.lr = 0.25}), options, world);
        train(other, 1);
        EXPECT_TRUE(torch::equal(frozen->table->forward(torch::arange(kRows)), scaled));
        const auto scope = other.gathered();
        EXPECT_TRUE(torch::equal(frozen->table->weight, before));
      });
}

struct TiedImpl : nn::Module {
  nn::Embedding one{nullptr}, other{nullptr};
  explicit TiedImpl(double most) {
    one = register_module("one", nn::Embedding(nn::EmbeddingOptions(8, 4).max_norm(1.0)));
    other = register_module(
        "other", nn::Embedding(nn::EmbeddingOptions(8, 4)._weight(one->weight).max_norm(most)));
  }
};

struct BagImpl : nn::Module {
  BagImpl() {
    register_module("words", nn::EmbeddingBag(nn::EmbeddingBagOptions(8, 4).max_norm(1.0)));
  }
};

TEST(BoundedRows, AreRefusedByNameWhereTheyCannotBeScaled) {
  engine_worlds::everywhere(
      kMicroBatches, [](std::shared_ptr<World> world, const EngineOptions& options) {
        const auto refusal = [&](auto model) {
          return message_of<ConfigError>(
              [&] { Engine engine(model, Sgd({.lr = 0.1}), options, world); });
        };
        const std::string bag = refusal(std::make_shared<BagImpl>());
        EXPECT_TRUE(contains(bag, "words") && contains(bag, "EmbeddingBag with max_norm")) << bag;
        const std::string tied = refusal(std::make_shared<TiedImpl>(2.0));
        EXPECT_TRUE(contains(tied, "other") && contains(tied, "another max_norm")) << tied;
        Words model;
        Engine engine(model, Sgd({.lr = 0.1}), options, world);
        // Another bound than the module's, another operator, and a scaling that nothing follows.
        const auto functional = [&](double most) {
          return F::embedding(
              torch::arange(3), model->table->weight, F::EmbeddingFuncOptions().max_norm(most));
        };
        EXPECT_TRUE(contains(message_of<ConfigError>([&] { functional(kMost / 2); }),
                             "would write to parameter table.weight"));
        EXPECT_EQ(functional(kMost).size(0), 3);
        const auto renorm = [&] {
          const torch::NoGradGuard no_grad;
          torch::embedding_renorm_(model->table->weight, torch::arange(3), kMost, 2.0);
        };
        const std::string sum = message_of<ConfigError>([&] {
          renorm();
          (void)model->table->weight.sum();
        });
        EXPECT_TRUE(contains(sum, "table.weight") && contains(sum, "aten::sum")) << sum;
        const Tensor loss = engine.forward(ids_of(0, 0));
        renorm();
        const std::string late = message_of<ConfigError>([&] { engine.backward(loss); });
        EXPECT_TRUE(contains(late, "no lookup") && contains(late, "engine.gathered")) << late;
        const std::string replicas =
            world->size() == 1
                ? std::string()
                : message_of<ConfigError>([&] { DataParallel wrapped(Words(), {}, world); });
        EXPECT_TRUE(world->size() == 1 || contains(replicas, "table.weight")) << replicas;
      });
}

}  // namespace
}  // namespace trireme::bounded_rows_test
