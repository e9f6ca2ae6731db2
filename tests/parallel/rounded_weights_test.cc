// Models that compute with rounded weights: as plain LibTorch does in one process, at every stage
// and on any number of ranks.

#include <gtest/gtest.h>

#include "support/compressed_training.h"
#include "support/ranks.h"
#include "support/shared_state.h"
#include "trireme/core/error.h"

namespace trireme::rounded_weights_test {
namespace {

using testing::arrives;
using testing::engine_weights;
using testing::exactly;
using testing::kOddRate;
using testing::kOddSteps;
using testing::message_of;
using testing::OddNet;
using testing::reference_weights;
using testing::same_bits;
using testing::SharedState;

const std::vector<std::string> kFormats = {"int8", "bf16", "fp16"};

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

TEST(RoundedWeights, TrainAsLibTorchDoesInOneProcessAtEveryStage) {
  constexpr std::int64_t kMicroBatches = 8;
  for (const int size : {1, 2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      for (const std::string& format : kFormats) {
        const auto expected = reference_weights(exactly(), kMicroBatches, format);
        ASSERT_FALSE(same_bits(expected, reference_weights(exactly(), kMicroBatches)));
        for (const Mode& mode : kModes) {
          // One unit, and one for each module.
          for (const std::size_t unit_bytes : {std::size_t{1} << 20, std::size_t{1024}}) {
            SCOPED_TRACE(format + ", " + name_of(mode));
            EXPECT_TRUE(same_bits(engine_weights(world,
                                                 Sgd({.lr = kOddRate}),
                                                 {.zero = mode.zero,
                                                  .placement = mode.placement,
                                                  .micro_batches = kMicroBatches,
                                                  .unit_bytes = unit_bytes,
                                                  .round_weights = make_compressor(format)}),
                                  expected));
          }
        }
      }
    });
  }
}

// Gradients that are compressed as well.
TEST(RoundedWeights, GoWithCompressedGradients) {
  in_world(3, [](const std::shared_ptr<World>& world) {
    const auto expected = reference_weights(testing::with_feedback("topk:0.25"), 4, "int8");
    for (const Mode& mode : kModes) {
      EXPECT_TRUE(same_bits(engine_weights(world,
                                           Sgd({.lr = kOddRate}),
                                           {.zero = mode.zero,
                                            .placement = mode.placement,
                                            .micro_batches = 4,
                                            .compress = make_compressor("topk:0.25"),
                                            .round_weights = make_compressor("int8")}),
                            expected))
          << name_of(mode);
    }
  });
}

// With what the reference does not have: AdamW, clipping, averages, owners of other ranges.
TEST(RoundedWeights, KeepTheBitsOfOneProcess) {
  for (const int size : {2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
      for (const std::string& format : kFormats) {
        EngineOptions options{.micro_batches = 5,
                              .clip_norm = 0.01,
                              .ema_decay = 0.5,
                              .unit_bytes = 2048,
                              .bucket_bytes = 1024,
                              .round_weights = make_compressor(format)};
        const auto expected = engine_weights(alone, AdamW({.lr = 1e-2}), options);
        for (const Mode& mode : kModes) {
          for (const Split split : {Split::kElement, Split::kLayer, Split::kDimension}) {
            SCOPED_TRACE(format + ", " + name_of(mode));
            options.zero = mode.zero;
            options.placement = mode.placement;
            options.split = split;
            EXPECT_TRUE(same_bits(engine_weights(world, AdamW({.lr = 1e-2}), options), expected));
          }
          options.split = Split::kElement;
          options.shares.assign(static_cast<std::size_t>(world->size()), 1);
          options.shares[0] = 2.5;
          EXPECT_TRUE(same_bits(engine_weights(world, AdamW({.lr = 1e-2}), options), expected));
          options.shares.clear();
        }
      }
    });
  }
}

void take_steps(Engine<testing::OddNetImpl>& engine, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(testing::odd_loss(
          [&](auto x, bool e) { return engine.forward(x, e); }, step, engine.micro_batch(k)));
      engine.step();
    }
  }
}

// A parameter's exact values, as checkpoints have them.
torch::Tensor master_of(EngineBase& engine, const std::string& name, torch::IntArrayRef sizes) {
  std::vector<float> values(static_cast<std::size_t>(c10::multiply_integers(sizes)), 0);
  const EngineState state = engine.state();
  for (const StateSlice& slice : state.view.slices) {
    const StateTensor& tensor = state.view.tensors[slice.tensor];
    if (tensor.kind == kWeightKind && tensor.name == name) {
      std::memcpy(values.data() + slice.range.begin,
                  slice.data,
                  static_cast<std::size_t>(slice.range.size()) * sizeof(float));
    }
  }
  engine.ranks().all_reduce(values).wait();
  return torch::tensor(values).reshape(sizes);
}

// A scope shows rounded weights. What is written to is exact from then on; the other elements are
// what they were, to the last bit.
TEST(RoundedWeights, KeepTheirMastersWhenTheyAreWrittenTo) {
  for (const int size : {1, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      for (const Mode& mode : kModes) {
        SCOPED_TRACE(name_of(mode));
        OddNet model;
        Engine engine(model,
                      AdamW({.lr = 1e-2}),
                      {.zero = mode.zero,
                       .placement = mode.placement,
                       .micro_batches = 4,
                       .round_weights = make_compressor("int8")},
                      world);
        const auto weight = [&] { return model->first->weight.detach().clone(); };
        const torch::Tensor began = OddNet()->first->weight.detach();
        EXPECT_TRUE(torch::equal(master_of(engine, "first.weight", {33, 40}), began));
        EXPECT_TRUE(torch::equal(weight(), arrives("int8", began)));
        take_steps(engine, 0, 2);
        torch::Tensor master = master_of(engine, "first.weight", {33, 40});
        EXPECT_TRUE(torch::equal(weight(), arrives("int8", master)));
        EXPECT_FALSE(torch::equal(weight(), master));
        {
          auto scope = engine.gathered({"first.weight"});
          const torch::NoGradGuard no_grad;
          model->first->weight[20].fill_(0.123456789);
        }
        master[20].fill_(0.123456789);
        EXPECT_TRUE(torch::equal(master_of(engine, "first.weight", {33, 40}), master));
        EXPECT_TRUE(torch::equal(weight(), arrives("int8", master)));
        // Vectors are what they are.
        EXPECT_TRUE(torch::equal(master_of(engine, "extra", {33}), model->extra.detach()));
      }
    });
  }
}

// Saved by two ranks, loaded by others, at other stages. The state is exact.
TEST(RoundedWeights, GoOnFromAStateWithAnyNumberOfRanks) {
  EngineOptions options{.zero = 1, .micro_batches = 5, .round_weights = make_compressor("int8")};
  SharedState half;
  SharedState whole;
  in_world(2, [&](const std::shared_ptr<World>& world) {
    OddNet model;
    Engine engine(model, AdamW({.lr = 1e-2}), options, world);
    take_steps(engine, 0, 2);
    half.save(engine);
    take_steps(engine, 2, 4);
    whole.save(engine);
  });
  for (const int size : {1, 3}) {
    for (const Mode& mode : kModes) {
      SharedState found;
      in_world(size, [&](const std::shared_ptr<World>& world) {
        OddNet model;
        options.zero = mode.zero;
        options.placement = mode.placement;
        Engine engine(model, AdamW({.lr = 1e-2}), options, world);
        half.load(engine);
        take_steps(engine, 2, 4);
        found.save(engine);
      });
      EXPECT_TRUE(found == whole) << size << " ranks, " << name_of(mode);
    }
  }
}

// A matrix and four dimensions are rounded; what is too small to gain by it, a vector, and what is
// frozen are not. Rows of an embedding with sparse gradients are.
TEST(RoundedWeights, AreThoseOfMatrices) {
  struct ManyImpl : torch::nn::Module {
    torch::nn::Embedding rows{nullptr};
    torch::Tensor four, small, vector, frozen;
    ManyImpl() {
      torch::manual_seed(3);
      rows = register_module("rows",
                             torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 7).sparse(true)));
      four = register_parameter("four", torch::randn({5, 4, 3, 6}));
      small = register_parameter("small", torch::randn({8, 8}));  // 256 bytes, 260 encoded
      vector = register_parameter("vector", torch::randn({700}));
      frozen = register_parameter("frozen", torch::randn({30, 30}), /*requires_grad=*/false);
    }
    torch::Tensor loss() {
      return rows->forward(torch::tensor({3, 9, 3, 41})).pow(2).sum() + four.pow(2).sum() +
             small.pow(2).sum() + vector.pow(2).sum() + frozen.sum();
    }
  };
  in_world(2, [](const std::shared_ptr<World>& world) {
    // One step of SGD, on two micro-batches that are the same: by LibTorch.
    auto plain = std::make_shared<ManyImpl>();
    std::map<std::string, torch::Tensor> masters;
    const auto is_rounded = [](const std::string& name) {
      return name == "rows.weight" || name == "four";
    };
    torch::NoGradGuard no_grad;
    for (auto& item : plain->named_parameters()) {
      masters[item.key()] = item.value().detach().clone();
      if (is_rounded(item.key())) {
        item.value().copy_(arrives("int8", item.value()));
      }
    }
    {
      const torch::AutoGradMode grad(true);
      plain->loss().backward();
    }
    for (const Mode& mode : kModes) {
      SCOPED_TRACE(name_of(mode));
      auto model = std::make_shared<ManyImpl>();
      Engine<ManyImpl> engine(model,
                              Sgd({.lr = 0.25}),
                              {.zero = mode.zero,
                               .placement = mode.placement,
                               .round_weights = make_compressor("int8")},
                              world);
      {
        const torch::AutoGradMode grad(true);
        engine.backward(model->loss());
        engine.step();
      }
      engine.unwrap();
      for (const auto& item : plain->named_parameters()) {
        torch::Tensor expected = masters[item.key()].clone();
        if (item.value().grad().defined()) {
          expected.sub_(item.value().grad().to_dense() * 0.25);
        }
        if (is_rounded(item.key())) {
          expected = arrives("int8", expected);
        }
        EXPECT_TRUE(torch::equal(model->named_parameters()[item.key()], expected)) << item.key();
      }
    }
  });
}

// Blocks of 256 elements take 260 bytes, and vectors 4 for each.
constexpr std::int64_t kCoded = 6 * 260 + 260 + 4 * (33 + 33 + 5);
constexpr std::int64_t kNumel = 1320 + 165 + 33 + 33 + 5;

std::int64_t sum_over(const std::shared_ptr<World>& world, std::int64_t value) {
  std::vector<std::int64_t> sum = {value};
  world->all_reduce(sum).wait();
  return sum[0];
}

TEST(RoundedWeights, TravelInAsManyBytesAsTheFormulaSays) {
  for (const int size : {1, 2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      for (const Mode& mode : kModes) {
        CompressionUse use;
        engine_weights(world,
                       Sgd({.lr = kOddRate}),
                       {.zero = mode.zero,
                        .placement = mode.placement,
                        .micro_batches = 6,
                        .round_weights = make_compressor("int8")},
                       &use);
        // Every rank gets all that it does not own, once in a step. Elsewhere nothing is sent.
        const bool sent = mode.zero == 1 || mode.zero == 2;
        const std::int64_t others = sent ? world->size() - 1 : 0;
        EXPECT_EQ(sum_over(world, use.weights.received_bytes), others * kOddSteps * kCoded);
        EXPECT_EQ(use.weights.exact_bytes > 3 * use.weights.received_bytes / 2,
                  sent && world->size() > 1);
        EXPECT_EQ(use.sent_bytes, 0);
      }
    });
  }
}

// Stage 3 copied keeps encoded parameters; elsewhere they are float32. Masters come in addition.
TEST(RoundedWeights, AreKeptInAsManyBytesAsTheLedgerSays) {
  in_world(3, [](const std::shared_ptr<World>& world) {
    for (const Mode& mode : kModes) {
      OddNet model;
      Engine engine(model,
                    Sgd({.lr = kOddRate}),
                    {.zero = mode.zero,
                     .placement = mode.placement,
                     .round_weights = make_compressor("int8")},
                    world);
      const MemoryReport report = engine.memory_report();
      std::int64_t parameters = 0;
      std::int64_t masters = 0;
      std::int64_t sent = 0;
      for (const MemoryUse& use : report.ranks) {
        parameters += use.of(MemoryCategory::kParameters);
        masters += use.of(MemoryCategory::kOptimizer);
        sent += use.of(MemoryCategory::kGather);
      }
      SCOPED_TRACE(name_of(mode));
      constexpr std::int64_t kGaps = 5 * 15 * 4;  // at most, to the next 64 bytes
      const std::int64_t copies = mode.zero < 3 ? 3 : 1;
      if (mode.placement == Placement::kCopied) {
        EXPECT_EQ(parameters, kCoded);
      } else {
        EXPECT_GE(parameters, copies * 4 * kNumel);
        EXPECT_LE(parameters, copies * (4 * kNumel + kGaps));
      }
      EXPECT_GE(masters, (mode.zero == 0 ? 3 : 1) * 4 * kNumel);
      EXPECT_LE(masters, (mode.zero == 0 ? 3 : 1) * (4 * kNumel + kGaps));
      EXPECT_EQ(sent, mode.zero == 1 || mode.zero == 2 ? 3 * kCoded : 0);
    }
  });
}

// The engine fails after it has taken the weights.
TEST(RoundedWeights, AreGivenBackExactlyWhereNoEngineCanBeBuilt) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    for (const Mode& mode : kModes) {
      OddNet model;
      const auto before = testing::flat_weights(*model);
      model->register_buffer("mask", torch::zeros({3 + world->rank()}));
      EXPECT_THROW(Engine(model,
                          Sgd({.lr = 1}),
                          {.zero = mode.zero,
                           .placement = mode.placement,
                           .round_weights = make_compressor("int8")},
                          world),
                   ConfigError);
      EXPECT_TRUE(same_bits(testing::flat_weights(*model), before)) << name_of(mode);
    }
  });
}

TEST(RoundedWeights, RefuseByNameWhatTheyCannotDo) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    const auto refusal = [&](const EngineOptions& options, OddNet model = OddNet()) {
      return message_of<ConfigError>([&] { Engine(model, Sgd({.lr = 1}), options, world); });
    };
    const auto expect_in = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    const auto int8 = make_compressor("int8");
    expect_in(refusal({.round_weights = world->rank() == 0 ? int8 : nullptr}), "weights rounded");
    expect_in(refusal({.round_weights = make_compressor("sign")}), "round_weights: sign");
    expect_in(refusal({.round_weights = make_compressor("powersgd:2")}), "round_weights: powersgd");
    expect_in(refusal({.precision = Precision::kBFloat16, .round_weights = int8}),
              "round_weights (int8): parameter extra is bfloat16");
    OddNet doubles;
    doubles->to(torch::kDouble);
    expect_in(refusal({.round_weights = int8}, doubles), "is float64");
    torch::nn::Embedding bounded(torch::nn::EmbeddingOptions(50, 7).max_norm(1.0));
    expect_in(message_of<ConfigError>(
                  [&] { Engine(bounded, Sgd({.lr = 1}), {.round_weights = int8}, world); }),
              "the rows of weight have a max_norm");
  });
}

}  // namespace
}  // namespace trireme::rounded_weights_test
