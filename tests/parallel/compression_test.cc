// Compressed gradients, from backward to the weights: as plain LibTorch computes them in one
// process, at every stage and on any number of ranks.

#include <gtest/gtest.h>

#include "support/compressed_training.h"
#include "support/ranks.h"
#include "support/shared_state.h"
#include "trireme/core/error.h"

namespace trireme::compression_test {
namespace {

using testing::arrives;
using testing::engine_weights;
using testing::fork_ranks;
using testing::kOddRate;
using testing::message_of;
using testing::OddNet;
using testing::same_bits;
using testing::SharedState;

// With feedback, with momentum, drawn, and as factors.
const std::vector<std::string> kAll = {
    "bf16", "fp16", "int8", "sign", "topk:0.25", "topk:0.25:0.5", "randk:0.25", "powersgd:2"};

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

// 8 micro-batches on 3 ranks: the last round has none for one of them.
TEST(Compression, TrainsAsLibTorchDoesInOneProcessAtEveryStage) {
  constexpr std::int64_t kMicroBatches = 8;
  for (const int size : {1, 2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      for (const auto& [name, arrive] : std::vector<std::pair<std::string, testing::Arrive>>{
               {"bf16", testing::without_feedback("bf16")},
               {"fp16", testing::without_feedback("fp16")},
               {"int8", testing::without_feedback("int8")},
               {"topk:0.25", testing::with_feedback("topk:0.25")},
               {"topk:0.25:0.5", testing::with_feedback("topk:0.25", 0.5)}}) {
        const auto expected = testing::reference_weights(arrive, kMicroBatches);
        for (int zero = 0; zero <= 3; ++zero) {
          // Buckets of a block or two, and one that is larger than everything.
          for (const std::size_t bucket_bytes : {std::size_t{256}, std::size_t{1} << 20}) {
            SCOPED_TRACE(name + ", stage " + std::to_string(zero));
            const auto found = engine_weights(world,
                                              Sgd({.lr = kOddRate}),
                                              {.zero = zero,
                                               .micro_batches = kMicroBatches,
                                               .bucket_bytes = bucket_bytes,
                                               .compress = make_compressor(name)});
            EXPECT_TRUE(same_bits(found, expected));
          }
        }
      }
    });
  }
}

// With what the reference does not have: clipping, masters of 16-bit parameters, one micro-batch
// for each rank and a remainder, small units, owners of other ranges, AdamW.
TEST(Compression, KeepsTheBitsOfOneProcess) {
  for (const int size : {2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
      for (const std::string& name : kAll) {
        for (const Precision precision : {Precision::kAsModel, Precision::kBFloat16}) {
          EngineOptions options{.micro_batches = 5,
                                .clip_norm = 0.01,
                                .precision = precision,
                                .unit_bytes = 2048,
                                .bucket_bytes = 1024,
                                .compress = make_compressor(name)};
          const auto expected = engine_weights(alone, AdamW({.lr = 1e-2}), options);
          EXPECT_FALSE(same_bits(expected, testing::flat_weights(*OddNet())));
          for (int zero = 0; zero <= 3; ++zero) {
            SCOPED_TRACE(name + ", stage " + std::to_string(zero));
            options.zero = zero;
            options.split = zero == 2 ? Split::kDimension : Split::kElement;
            EXPECT_TRUE(same_bits(engine_weights(world, AdamW({.lr = 1e-2}), options), expected));
          }
        }
      }
    });
  }
}

// Where everything is sent, momentum before sending is that of momentum SGD: of each micro-batch
// instead of their mean, which is the same but for rounding.
TEST(Compression, WithMomentumAndNothingLeftOutIsMomentumSgd) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    EngineOptions options{.zero = 2, .micro_batches = 2};
    const auto expected = engine_weights(world, Sgd({.lr = kOddRate, .momentum = 0.5}), options);
    const auto plain = engine_weights(world, Sgd({.lr = kOddRate}), options);
    options.compress = make_compressor("topk:1:0.5");
    const auto found = engine_weights(world, Sgd({.lr = kOddRate}), options);
    double most = 0;
    double moved = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(found[i]) - expected[i]));
      moved = std::max(moved, std::abs(static_cast<double>(plain[i]) - expected[i]));
    }
    EXPECT_LT(most, 1e-6);
    EXPECT_GT(moved, 1e-3);
  });
}

// What was sent and what is left add up to the gradients, exactly: they are multiples of 1/64, and
// so is what topk leaves. A step that is dropped leaves what there was, and what a step does not
// use waits.
TEST(Compression, LosesNothingOfTheStepsThatWereTaken) {
  struct RowsImpl : torch::nn::Module {
    torch::Tensor row = register_parameter("row", torch::zeros({1500}));
    torch::Tensor side = register_parameter("side", torch::zeros({1500}));
  };
  in_world(3, [](const std::shared_ptr<World>& world) {
    const auto gradient = [](int step, std::int64_t m) {
      const torch::Tensor numbers = torch::arange(1500, torch::kFloat);
      return (torch::fmod(numbers * (step + 3) + 11 * m, 61) - 30) / 64;
    };
    const auto uses_side = [](int step, std::int64_t m) { return step != 4 && m % 2 == 0; };
    const auto model = std::make_shared<RowsImpl>();
    Engine<RowsImpl> engine(
        model,
        Sgd({.lr = 1}),
        {.zero = 2, .micro_batches = 4, .compress = make_compressor("topk:0.1")},
        world);
    torch::Tensor all = torch::zeros({2, 1500});
    for (int step = 0; step < 6; ++step) {
      const bool bad = step == 2;
      for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
        const std::int64_t m = engine.micro_batch(k);
        torch::Tensor weight = gradient(step, m);
        if (bad && m == 1) {
          weight[7] = INFINITY;
        }
        torch::Tensor loss = (model->row * weight).sum();
        if (uses_side(step, m)) {
          loss = loss + (model->side * weight).sum();
        }
        engine.backward(loss);
        if (!bad || k + 1 < engine.local_micro_batches()) {
          engine.step();
        } else {
          EXPECT_THROW(engine.step(), GradientError);
        }
      }
      for (std::int64_t m = 0; m < 4 && !bad; ++m) {
        all[0] += gradient(step, m);
        all[1] += uses_side(step, m) ? gradient(step, m) : torch::zeros({1500});
      }
    }
    // All that was sent moved the weights, by a quarter (the mean); what is left is in the state.
    const EngineState state = engine.state();
    std::vector<double> left(3000, 0);
    for (const StateSlice& slice : state.view.slices) {
      const StateTensor& tensor = state.view.tensors[slice.tensor];
      if (tensor.kind.starts_with("residual.")) {
        for (std::int64_t i = slice.range.begin; i < slice.range.end; ++i) {
          left[static_cast<std::size_t>(i + (tensor.name == "side" ? 1500 : 0))] +=
              reinterpret_cast<const float*>(slice.data)[i - slice.range.begin];
        }
      }
    }
    world->all_reduce(left).wait();
    auto scope = engine.gathered();
    const torch::Tensor moved =
        4 * torch::cat({model->row.detach(), model->side.detach()}).to(torch::kDouble);
    const torch::Tensor rest = torch::tensor(left, torch::kDouble);
    EXPECT_TRUE(torch::equal(rest - moved, all.flatten().to(torch::kDouble)));
  });
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

// Saved by two ranks, loaded by three and by one, at other stages.
TEST(Compression, GoesOnFromAStateWithAnyNumberOfRanks) {
  for (const std::string& name : kAll) {
    SCOPED_TRACE(name);
    const EngineOptions options{.zero = 1, .micro_batches = 5, .compress = make_compressor(name)};
    SharedState half;
    SharedState whole;
    in_world(2, [&](const std::shared_ptr<World>& world) {
      OddNet model;
      Engine engine(model, Sgd({.lr = kOddRate}), options, world);
      take_steps(engine, 0, 2);
      half.save(engine);
      take_steps(engine, 2, 4);
      whole.save(engine);
    });
    for (const auto& [size, zero] : {std::pair(3, 3), {1, 0}, {3, 0}}) {
      SharedState found;
      in_world(size, [&, zero = zero](const std::shared_ptr<World>& world) {
        OddNet model;
        EngineOptions other = options;
        other.zero = zero;
        Engine engine(model, Sgd({.lr = kOddRate}), other, world);
        half.load(engine);
        take_steps(engine, 2, 4);
        found.save(engine);
      });
      EXPECT_TRUE(found == whole) << size << " ranks, stage " << zero;
    }
  }
}

TEST(Compression, RanksMayAddUpTheirOwnFirst) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    std::vector<float> first;
    for (int zero = 0; zero <= 3; ++zero) {
      const auto found = engine_weights(world,
                                        Sgd({.lr = kOddRate}),
                                        {.zero = zero,
                                         .micro_batches = 8,
                                         .sum_order = SumOrder::kLocalFirst,
                                         .compress = make_compressor("int8")});
      first = first.empty() ? found : first;
      EXPECT_TRUE(same_bits(found, first)) << zero;
    }
  });
}

// One term, of all micro-batches: with feedback as if they were one micro-batch.
TEST(Compression, AProcessAloneThatAddsUpFirstKeepsWhatItLeavesOut) {
  struct RowImpl : torch::nn::Module {
    torch::Tensor row = register_parameter("row", torch::zeros({1500}));
  };
  const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
  std::vector<float> found[2];
  for (const int parts : {1, 2}) {
    const auto model = std::make_shared<RowImpl>();
    Engine<RowImpl> engine(model,
                           Sgd({.lr = 1}),
                           {.micro_batches = parts,
                            .sum_order = SumOrder::kLocalFirst,
                            .compress = make_compressor("topk:0.1")},
                           alone);
    for (int step = 0; step < 4; ++step) {
      for (int part = 0; part < parts; ++part) {
        // Whole numbers, and the mean of two is that of one.
        engine.backward((model->row * (torch::arange(1500) % (40 + step) - 20)).sum());
        engine.step();
      }
    }
    found[parts - 1] = testing::flat_weights(*model);
  }
  EXPECT_TRUE(same_bits(found[0], found[1]));
}

TEST(Compression, SendsAsManyBytesAsTheFormulaSays) {
  const std::vector<std::int64_t> numels = {33, 1320, 33, 165, 5};  // extra comes first
  for (const int size : {1, 2, 3}) {
    in_world(size, [&](const std::shared_ptr<World>& world) {
      CompressionUse use;
      engine_weights(world,
                     Sgd({.lr = kOddRate}),
                     {.zero = 2, .micro_batches = 6, .compress = make_compressor("int8")},
                     &use);
      const auto mail = testing::mail_bytes(numels, world->size(), 256, 260);
      std::int64_t expected = 0;
      for (int rank = 0; rank < world->size(); ++rank) {
        expected += rank == world->rank() ? 0 : mail[static_cast<std::size_t>(rank)];
      }
      const std::int64_t rounds = testing::kOddSteps * 6 / world->size();
      EXPECT_EQ(use.sent_bytes, rounds * expected);
      EXPECT_EQ(use.exact_bytes > 0, world->size() > 1);
      EXPECT_GT(use.seconds, 0);
    });
  }
}

struct Mine final : Compressor {
  explicit Mine(float factor, Format format = {.name = "mine", .block = 32, .bytes = 4})
      : Compressor(std::move(format)), scale(factor) {}
  void encode(std::span<const float> x, std::span<std::byte> to, const BlockKey&) const override {
    const float first = x[0] * scale;
    std::memcpy(to.data(), &first, sizeof(first));
  }
  void decode(std::span<const std::byte> from, std::span<float> x, const BlockKey&) const override {
    std::memcpy(x.data(), from.data(), sizeof(float));
    std::fill(x.begin() + 1, x.end(), x[0]);
  }
  float scale;
};

TEST(Compression, RefusesByNameWhatItCannotDo) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    const auto refusal = [&](const EngineOptions& options, OddNet model = OddNet()) {
      return message_of<ConfigError>([&] { Engine(model, Sgd({.lr = 1}), options, world); });
    };
    const auto expect_in = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    // Ranks that disagree: one has none, another one, or one that encodes differently.
    expect_in(refusal({.compress = world->rank() == 0 ? make_compressor("int8") : nullptr}),
              "compressor");
    expect_in(refusal({.compress = make_compressor(world->rank() == 0 ? "int8" : "bf16")}), "bf16");
    expect_in(refusal({.compress = std::make_shared<Mine>(static_cast<float>(1 + world->rank()))}),
              "encodes test blocks as");
    EngineOptions both{.compress = make_compressor("int8")};
    both.gradient_hook = [](const GradientBucket& bucket) { return bucket.values; };
    expect_in(refusal(both), "not both");
    OddNet doubles;
    doubles->to(torch::kDouble);
    expect_in(refusal({.compress = make_compressor("int8")}, doubles), "is float64");
    const Compressor::Format keeps{.name = "keeps", .block = 32, .bytes = 4, .feedback = true};
    expect_in(refusal({.check_gradients = false, .compress = std::make_shared<Mine>(1, keeps)}),
              "compressor keeps keeps what it leaves out");
    expect_in(
        refusal({.precision = Precision::kFloat16, .compress = std::make_shared<Mine>(1, keeps)}),
        "loss scale");
    OddNet model;
    Engine engine(model,
                  Sgd({.lr = 1}),
                  {.accumulate = 2, .compress = std::make_shared<Mine>(1, keeps)},
                  world);
    expect_in(message_of<ConfigError>([&] { engine.deal({3, 1}); }), "deal(): compressor keeps");
    engine.deal({2, 2});
    EXPECT_EQ(engine.compression().sent_bytes, 0);
  });
}

}  // namespace
}  // namespace trireme::compression_test
