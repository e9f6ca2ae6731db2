// Compressed gradients between machines: the bits of one process, and on the wire the bytes that
// the formula says.

#include <gtest/gtest.h>

#include "support/compressed_training.h"
#include "support/ranks.h"

namespace trireme::compression_machines_test {
namespace {

using testing::engine_weights;
using testing::kOddRate;

// A model of one matrix, so that what is not gradients is small beside them.
struct MatrixImpl : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::ones({500, 1001}));
};
TORCH_MODULE(Matrix);

TEST(CompressionMachines, KeepsTheBitsOfOneProcess) {
  for (const int size : {2, 3}) {
    testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
      at::set_num_threads(1);
      const auto world = init(testing::options_for(job, rank, size));
      for (const char* name : {"bf16", "fp16", "int8"}) {
        const auto expected = testing::reference_weights(testing::without_feedback(name), 4);
        for (int zero = 0; zero <= 3; ++zero) {
          EXPECT_TRUE(testing::same_bits(
              engine_weights(world,
                             Sgd({.lr = kOddRate}),
                             {.zero = zero, .micro_batches = 4, .compress = make_compressor(name)}),
              expected))
              << name << ", stage " << zero;
        }
      }
    });
  }
}

TEST(CompressionMachines, FactorsKeepTheBitsOfOneProcess) {
  for (const int size : {2, 3}) {
    testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
      at::set_num_threads(1);
      const auto world = init(testing::options_for(job, rank, size));
      const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
      EngineOptions options{.micro_batches = 5, .compress = make_compressor("powersgd:2")};
      const auto expected = engine_weights(alone, Sgd({.lr = kOddRate}), options);
      for (options.zero = 0; options.zero <= 3; ++options.zero) {
        EXPECT_TRUE(
            testing::same_bits(engine_weights(world, Sgd({.lr = kOddRate}), options), expected))
            << options.zero;
      }
    });
  }
}

// Two ranks on two machines. A rank sends the other its half of the gradients, and with DDP its
// half of the sums. (Stages 1 to 3 send parameters instead of sums, as they are.)
TEST(CompressionMachines, SendsAsManyBytesAsTheFormulaSays) {
  testing::fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    const std::pair<const char*, std::pair<std::int64_t, std::int64_t>> formats[] = {
        {"bf16", {128, 256}}, {"fp16", {128, 258}}, {"int8", {256, 260}}};
    const auto other = static_cast<std::size_t>(1 - rank);
    const auto me = static_cast<std::size_t>(rank);
    for (const auto& [name, format] : formats) {
      for (const int zero : {0, 2}) {
        SCOPED_TRACE(std::string(name) + ", stage " + std::to_string(zero));
        Matrix model;
        Engine engine(model,
                      Sgd({.lr = 0.5}),
                      {.zero = zero, .bucket_bytes = 64 << 20, .compress = make_compressor(name)},
                      world);
        const auto step = [&] {
          engine.backward(model->weight.sum());
          engine.step();
        };
        step();  // the order of buckets is told after the first
        const std::int64_t before = world->use().network_bytes;
        const CompressionUse use = engine.compression();
        step();
        const std::int64_t sent = world->use().network_bytes - before;
        const std::int64_t ledger = engine.compression().sent_bytes - use.sent_bytes;
        constexpr std::int64_t kNumel = 500 * 1001;
        const auto terms = testing::mail_bytes({kNumel}, 2, format.first, format.second);
        const auto sums = testing::mail_bytes({kNumel}, 2, format.first, format.second, false);
        EXPECT_EQ(ledger, terms[other] + (zero == 0 ? sums[me] : 0));
        const std::int64_t parameters = zero == 0 ? 0 : kNumel / 2 * 4;
        EXPECT_GE(sent, ledger + parameters - 64);
        EXPECT_LE(sent, ledger + parameters + 8192);
      }
    }
  });
}

// Two factors of a matrix, each added up and given to both ranks; with DDP nothing else.
TEST(CompressionMachines, SendsTheBytesOfTwoFactors) {
  testing::fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    Matrix model;
    Engine engine(model, Sgd({.lr = 0.5}), {.compress = make_compressor("powersgd:4")}, world);
    const auto step = [&] {
      engine.backward(model->weight.sum());
      engine.step();
    };
    step();
    const std::int64_t before = world->use().network_bytes;
    const std::int64_t ledger = engine.compression().sent_bytes;
    step();
    std::int64_t expected = 0;
    for (const std::int64_t numel : {500 * 4 + 1, 1001 * 4}) {  // a count beside the first
      expected += 4 * numel;                                    // a half as a term, a half as a sum
    }
    EXPECT_EQ(engine.compression().sent_bytes - ledger, expected);
    EXPECT_GE(world->use().network_bytes - before, expected - 64);
    EXPECT_LE(world->use().network_bytes - before, expected + 8192);
  });
}

TEST(CompressionMachines, RoundedWeightsKeepTheBitsOfOneProcess) {
  for (const int size : {2, 3, 4}) {
    testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
      at::set_num_threads(1);
      const auto world = init(testing::options_for(job, rank, size));
      for (const char* name : {"bf16", "int8"}) {
        const auto expected = testing::reference_weights(testing::exactly(), 4, name);
        EngineOptions options{.micro_batches = 4, .round_weights = make_compressor(name)};
        for (options.zero = 0; options.zero <= 3; ++options.zero) {
          EXPECT_TRUE(
              testing::same_bits(engine_weights(world, Sgd({.lr = kOddRate}), options), expected))
              << name << ", stage " << options.zero;
        }
        options.shard_group = ShardGroup::kMachine;
        for (options.zero = 1; options.zero <= 3 && size == 4; ++options.zero) {
          EXPECT_TRUE(
              testing::same_bits(engine_weights(world, Sgd({.lr = kOddRate}), options), expected))
              << name << ", stage " << options.zero << " in each machine";
        }
      }
    });
  }
}

// Stages 1 and 2 send a half of the parameters after a step, stage 3 reads the other's half when
// the matrix is used: in blocks of 256, of which the last is not full.
TEST(CompressionMachines, SendsTheBytesOfRoundedWeights) {
  testing::fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    constexpr std::int64_t kBlocks = (500 * 1001 + 255) / 256;
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(zero);
      Matrix model;
      Engine engine(model,
                    Sgd({.lr = 0.5}),
                    {.zero = zero,
                     .bucket_bytes = 64 << 20,
                     .prefetch = Prefetch::kOff,
                     .compress = make_compressor("int8"),
                     .round_weights = make_compressor("int8")},
                    world);
      const auto step = [&] {
        engine.backward(model->weight.sum());
        engine.step();
      };
      step();
      // At stage 3 the other rank may otherwise have read for its next step by then.
      world->barrier().wait();
      const std::int64_t before = world->use().network_bytes;
      const CompressionUse use = engine.compression();
      world->barrier().wait();
      step();
      const std::int64_t sent = world->use().network_bytes - before;
      const CompressionUse now = engine.compression();
      std::vector<std::int64_t> received = {now.weights.received_bytes -
                                            use.weights.received_bytes};
      // To within the block in which the halves meet.
      EXPECT_NEAR(static_cast<double>(received[0]), kBlocks * 260.0 / 2, 260);
      EXPECT_GT(10 * (now.weights.exact_bytes - use.weights.exact_bytes), 39 * received[0]);
      world->all_reduce(received).wait();
      EXPECT_EQ(received[0], kBlocks * 260);
      const double expected =
          static_cast<double>(now.sent_bytes - use.sent_bytes) + kBlocks * 260.0 / 2;
      EXPECT_NEAR(static_cast<double>(sent), expected, 8192);
    }
  });
}

}  // namespace
}  // namespace trireme::compression_machines_test
