// Weights that are pruned by magnitude: those that sorting with LibTorch in one process chooses, at
// every stage and on any number of ranks, and they stay zero.

#include <gtest/gtest.h>

#include "support/compressed_training.h"
#include "support/ranks.h"
#include "support/shared_state.h"
#include "trireme/core/error.h"

namespace trireme::pruning_test {
namespace {

using testing::kOddRate;
using testing::message_of;
using testing::OddNet;
using testing::same_bits;
using testing::SharedState;

constexpr int kSteps = 8;
constexpr std::int64_t kMicroBatches = 4;
const Pruning kPruning{.fraction = 0.7, .begin = 2, .end = 7, .every = 2};

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

// Stages 0 to 3, and stage 3 with copies.
struct Mode {
  int zero;
  Placement placement;
};
const std::vector<Mode> kModes = {{0, Placement::kAutomatic},
                                  {1, Placement::kAutomatic},
                                  {2, Placement::kAutomatic},
                                  {3, Placement::kMapped},
                                  {3, Placement::kCopied}};
std::string name_of(const Mode& mode) {
  return "stage " + std::to_string(mode.zero) +
         (mode.placement == Placement::kCopied ? " copied" : "");
}

// Whose weights are the same in large groups, zeros among them: which of them go is a matter of
// their order.
OddNet make_model(bool ties) {
  OddNet model;
  const torch::NoGradGuard no_grad;
  for (torch::Tensor parameter : model->parameters()) {
    if (ties) {
      parameter.copy_(torch::round(parameter * 32) / 32 + 0.0);
    }
  }
  return model;
}

// Zhu and Gupta's formula, by hand for these steps: 5 steps from 2 to 7.
double fraction_of(int step) {
  const std::map<int, double> left = {{4, 3.0 / 5}, {6, 1.0 / 5}, {7, 0}};
  const auto found = left.find(step);
  return found == left.end() ? 0 : 0.7 * (1 - std::pow(found->second, 3));
}

// SGD as in testing::reference_weights, every product of which is exact.
std::vector<float> reference(bool ties) {
  OddNet model = make_model(ties);
  std::map<std::size_t, torch::Tensor> masks;
  const std::vector<torch::Tensor> parameters = model->parameters();
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<torch::Tensor> sums(parameters.size());
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      model->zero_grad();
      testing::odd_loss([&](auto x, bool extra) { return model->forward(x, extra); }, step, m)
          .backward();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const torch::Tensor& gradient = parameters[p].grad();
        if (gradient.defined()) {
          sums[p] = sums[p].defined() ? sums[p] + gradient : gradient.clone();
        }
      }
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      torch::Tensor weights = parameters[p];
      const bool matrix = weights.dim() == 2;
      if (matrix && fraction_of(step) > 0) {
        torch::Tensor flat = weights.flatten().abs();
        if (masks.count(p) > 0) {
          flat.masked_fill_(masks[p].flatten(), -1);
        }
        const torch::Tensor order = std::get<1>(flat.sort(/*stable=*/true, 0, false));
        const auto count = std::llround(fraction_of(step) * static_cast<double>(flat.numel()));
        const torch::Tensor mask = torch::zeros_like(flat, torch::kBool);
        mask.index_put_({order.slice(0, 0, count)}, torch::tensor(true));
        masks[p] = mask.reshape(weights.sizes());
      }
      if (sums[p].defined()) {
        weights.sub_(sums[p] * (kOddRate / static_cast<double>(kMicroBatches)));
      }
      if (masks.count(p) > 0) {
        weights.masked_fill_(masks[p], -0.0);
      }
    }
  }
  return testing::flat_weights(*model);
}

void take_steps(EngineBase& engine, OddNet& model, int first, int last) {
  for (int step = first; step <= last; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(
          testing::odd_loss([&](auto x, bool extra) { return model->forward(x, extra); },
                            step,
                            engine.micro_batch(k)));
      engine.step();
    }
  }
}

std::vector<float> trained(const std::shared_ptr<World>& world,
                           const Optimizer& optimizer,
                           const EngineOptions& options,
                           bool ties = false) {
  OddNet model = make_model(ties);
  EngineBase engine(model.ptr(), optimizer, options, world);
  take_steps(engine, model, 1, kSteps);
  engine.unwrap();
  return testing::flat_weights(*model);
}

TEST(Pruning, TakesTheWeightsThatSortingTakesAtEveryStage) {
  for (const bool ties : {false, true}) {
    const std::vector<float> expected = reference(ties);
    for (const int size : {1, 2, 3}) {
      in_world(size, [&](const std::shared_ptr<World>& world) {
        for (const Mode& mode : kModes) {
          for (const std::size_t unit_bytes : {std::size_t{1} << 20, std::size_t{1024}}) {
            SCOPED_TRACE(name_of(mode) + (ties ? ", ties" : ""));
            EXPECT_TRUE(same_bits(trained(world,
                                          Sgd({.lr = kOddRate}),
                                          {.zero = mode.zero,
                                           .placement = mode.placement,
                                           .micro_batches = kMicroBatches,
                                           .unit_bytes = unit_bytes,
                                           .prune = kPruning},
                                          ties),
                                  expected));
          }
        }
      });
    }
  }
}

// With what the reference does not have: moments, averages, whole parameters, 16 bits, owners of
// other ranges.
TEST(Pruning, KeepsTheBitsOfOneProcess) {
  for (const int size : {2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
      for (const Precision precision : {Precision::kAsModel, Precision::kBFloat16}) {
        EngineOptions options{.micro_batches = 5,
                              .clip_norm = 0.01,
                              .ema_decay = 0.5,
                              .precision = precision,
                              .unit_bytes = 2048,
                              .bucket_bytes = 1024,
                              .prune = kPruning};
        if (precision == Precision::kAsModel) {
          options.round_weights = make_compressor("int8");
        }
        const auto adam = trained(alone, AdamW({.lr = 1e-2}), options, true);
        const auto lamb = trained(alone, Lamb({.lr = 1e-2}), options, true);
        for (const Mode& mode : kModes) {
          for (const Split split : {Split::kElement, Split::kLayer, Split::kDimension}) {
            SCOPED_TRACE(name_of(mode));
            options.zero = mode.zero;
            options.placement = mode.placement;
            options.split = split;
            EXPECT_TRUE(same_bits(trained(world, AdamW({.lr = 1e-2}), options, true), adam));
            EXPECT_TRUE(same_bits(trained(world, Lamb({.lr = 1e-2}), options, true), lamb));
          }
          options.split = Split::kElement;
          options.shares.assign(static_cast<std::size_t>(world->size()), 1);
          options.shares[0] = 2.5;
          EXPECT_TRUE(same_bits(trained(world, AdamW({.lr = 1e-2}), options, true), adam));
          options.shares.clear();
        }
      }
    });
  }
}

// What the model computes with is pruned, too, and not only the masters of it.
TEST(Pruning, IsSeenInHalfPrecision) {
  for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
    for (const int size : {1, 2}) {
      in_world(size, [&](const std::shared_ptr<World>& world) {
        for (const Mode& mode : kModes) {
          SCOPED_TRACE(name_of(mode));
          OddNet model = make_model(false);
          EngineBase engine(model.ptr(),
                            AdamW({.lr = 1e-2}),
                            {.zero = mode.zero,
                             .placement = mode.placement,
                             .micro_batches = kMicroBatches,
                             .precision = precision,
                             .prune = kPruning},
                            world);
          take_steps(engine, model, 1, kSteps + 1);
          auto scope = engine.gathered();
          for (const torch::Tensor& weights : model->parameters()) {
            if (weights.dim() == 2) {
              EXPECT_EQ(weights.element_size(), 2);
              EXPECT_EQ((weights == 0).sum().item<std::int64_t>(),
                        std::llround(0.7 * static_cast<double>(weights.numel())));
            }
          }
          scope.close();
        }
      });
    }
  }
}

// The weights are what says which are pruned: saved by two ranks, loaded by others, at any step.
TEST(Pruning, GoesOnFromAStateWithAnyNumberOfRanks) {
  EngineOptions options{.zero = 1, .micro_batches = 5, .ema_decay = 0.5, .prune = kPruning};
  for (const int saved_after : {3, 4, 7}) {
    SharedState half;
    SharedState whole;
    in_world(2, [&](const std::shared_ptr<World>& world) {
      OddNet model = make_model(true);
      EngineBase engine(model.ptr(), AdamW({.lr = 1e-2}), options, world);
      take_steps(engine, model, 1, saved_after);
      half.save(engine);
      take_steps(engine, model, saved_after + 1, kSteps + 1);
      whole.save(engine);
      // 0.7 n of 40 x 33 and 33 x 5
      EXPECT_DOUBLE_EQ(engine.pruned(), (924.0 + 115) / (1320 + 165));
      const torch::Tensor average = engine.average("first.weight");
      EXPECT_EQ((average == 0).sum().item<std::int64_t>(), 924);
    });
    for (const int size : {1, 3}) {
      for (const Mode& mode : kModes) {
        SharedState found;
        in_world(size, [&](const std::shared_ptr<World>& world) {
          OddNet model;
          options.zero = mode.zero;
          options.placement = mode.placement;
          EngineBase engine(model.ptr(), AdamW({.lr = 1e-2}), options, world);
          half.load(engine);
          take_steps(engine, model, saved_after + 1, kSteps + 1);
          found.save(engine);
        });
        EXPECT_TRUE(found == whole) << size << " ranks, " << name_of(mode) << ", " << saved_after;
      }
    }
    options.zero = 1;
    options.placement = Placement::kAutomatic;
  }
}

// A training that has passed the last step without pruning prunes in its next one.
TEST(Pruning, BeginsLateWhereItIsAskedForLate) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    OddNet model = make_model(false);
    EngineBase engine(model.ptr(),
                      Sgd({.lr = kOddRate}),
                      {.micro_batches = 2, .prune = {.fraction = 0.5, .every = 1}},
                      world);
    EXPECT_EQ(engine.pruned(), 0);
    take_steps(engine, model, 1, 1);
    EXPECT_DOUBLE_EQ(engine.pruned(), (660.0 + 83) / (1320 + 165));
  });
}

TEST(Pruning, IsOfTheParametersThatAreChosen) {
  in_world(3, [](const std::shared_ptr<World>& world) {
    OddNet model = make_model(false);
    const torch::Tensor second = model->second->weight;
    EngineBase engine(model.ptr(),
                      Sgd({.lr = kOddRate}),
                      {.micro_batches = 3,
                       .prune = {.fraction = 0.5,
                                 .which = [](const std::string& name,
                                             at::IntArrayRef) { return name == "first.bias"; }}},
                      world);
    take_steps(engine, model, 1, 3);
    EXPECT_DOUBLE_EQ(engine.pruned(), 17.0 / 33);
    EXPECT_EQ((model->first->bias == 0).sum().item<std::int64_t>(), 17);
    EXPECT_EQ((second == 0).sum().item<std::int64_t>(), 0);
  });
}

TEST(Pruning, RefusesByNameWhatItCannotDo) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    const auto refusal = [&](const Pruning& prune) {
      OddNet model;
      return message_of<ConfigError>(
          [&] { EngineBase(model.ptr(), Sgd({.lr = 1}), {.prune = prune}, world); });
    };
    const auto expect_in = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect_in(refusal({.fraction = 1}), "fraction must be in [0, 1), found 1");
    expect_in(refusal({.fraction = -0.5}), "fraction must be in [0, 1), found -0.5");
    expect_in(refusal({.fraction = 0.5, .begin = 9, .end = 3}), "begin 9, end 3");
    expect_in(refusal({.fraction = 0.5, .every = 0}), "every 0");
    expect_in(refusal({.fraction = world->rank() == 0 ? 0.5 : 0.25}), "prune 0.5");
    expect_in(refusal({.fraction = 0.5,
                       .which = [](const std::string&, at::IntArrayRef) { return false; }}),
              "Pruning::which chooses none");
    torch::nn::Embedding rows(torch::nn::EmbeddingOptions(50, 7).sparse(true));
    EngineOptions options{.prune = {.fraction = 0.5}};
    const auto of_rows = [&] { EngineBase(rows.ptr(), Sgd({.lr = 1}), options, world); };
    expect_in(message_of<ConfigError>(of_rows), "expected a parameter to prune, found none of 1");
    options.prune.which = [](const std::string&, at::IntArrayRef) { return true; };
    expect_in(message_of<ConfigError>(of_rows), "parameter weight has sparse gradients");
  });
}

}  // namespace
}  // namespace trireme::pruning_test
