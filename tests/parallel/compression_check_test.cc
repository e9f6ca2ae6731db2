// EngineOptions::compress_check: how far the compressed sum is from the exact one, by formula.

#include <cmath>

#include <gtest/gtest.h>

#include "support/compressed_training.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme::compression_check_test {
namespace {

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

// Two that are always used, and one that is not in step 2.
struct RowsImpl : torch::nn::Module {
  torch::Tensor row = register_parameter("row", torch::zeros({1300}));
  torch::Tensor matrix = register_parameter("matrix", torch::zeros({40, 33}));
  torch::Tensor some = register_parameter("some", torch::zeros({50}));
};
TORCH_MODULE(Rows);

torch::Tensor gradient_of(std::size_t p, const torch::Tensor& parameter, int step, std::int64_t m) {
  auto generator = at::detail::createCPUGenerator(100 * p + static_cast<std::size_t>(10 * step) +
                                                  static_cast<std::size_t>(m));
  return torch::randn(parameter.sizes(), generator, torch::kFloat);
}

struct Checks {
  std::vector<CompressionUse::Check> found;
  std::vector<torch::Tensor> moved;  // by step: all weights
};

// What comes of the first attempt at every step.
enum class Trouble { kNone, kOverflow, kGivenUp };

void attempt(Rows& model, Engine<RowsImpl>& engine, int step, Trouble trouble) {
  for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
    const bool in_trouble = engine.micro_batch(k) == 0;  // of rank 0, which has another
    const bool overflows = in_trouble && trouble == Trouble::kOverflow;
    torch::Tensor loss = torch::zeros({});
    std::size_t p = 0;
    for (const torch::Tensor& parameter : model->parameters()) {
      if (p < 2 || step != 1) {
        const torch::Tensor gradient = gradient_of(p, parameter, step, engine.micro_batch(k));
        loss = loss + (parameter * (overflows ? gradient * INFINITY : gradient)).sum();
      }
      ++p;
    }
    engine.backward(loss);
    if (in_trouble && trouble == Trouble::kGivenUp) {
      engine.give_up("a trial");
    }
    engine.step();
  }
}

Checks train(const std::shared_ptr<World>& world,
             const EngineOptions& options,
             Trouble trouble = Trouble::kNone) {
  constexpr int kSteps = 5;
  Rows model;
  Engine engine(model, Sgd({.lr = 1}), options, world);
  Checks checks;
  for (int step = 0; step < kSteps; ++step) {
    if (trouble == Trouble::kOverflow) {
      attempt(model, engine, step, trouble);
      EXPECT_EQ(engine.skipped_steps(), step + 1);
    } else if (trouble == Trouble::kGivenUp) {
      EXPECT_THROW(attempt(model, engine, step, trouble), StepGivenUp);
    }
    if (trouble != Trouble::kNone && step > 0) {
      EXPECT_EQ(engine.compression().check.step, checks.found.back().step);
      EXPECT_EQ(engine.compression().check.cosine, checks.found.back().cosine);
    }
    attempt(model, engine, step, Trouble::kNone);
    EXPECT_EQ(engine.steps(), step + 1);
    checks.found.push_back(engine.compression().check);
    auto scope = engine.gathered();
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& parameter : model->parameters()) {
      flat.push_back(parameter.detach().to(torch::kDouble).flatten().clone());
    }
    checks.moved.push_back(torch::cat(flat));
  }
  return checks;
}

// The weights move by the mean of what arrived; the exact gradients are known.
TEST(CompressionCheck, IsTheErrorAndTheCosineOfWhatArrived) {
  for (const int size : {1, 2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      for (const char* name : {"int8", "sign", "topk:0.1", "powersgd:2"}) {
        for (int zero = 0; zero <= 3; ++zero) {
          SCOPED_TRACE(std::string(name) + ", stage " + std::to_string(zero));
          EngineOptions options{
              .zero = zero, .micro_batches = 4, .compress = make_compressor(name)};
          const Checks without = train(world, options);
          options.compress_check = 2;
          const Checks with = train(world, options);
          for (std::size_t step = 0; step < with.found.size(); ++step) {
            EXPECT_TRUE(
                torch::equal(with.moved[step], without.moved[step]));  // nothing else changes
            EXPECT_EQ(without.found[step].step, 0);
            EXPECT_EQ(with.found[step].step, static_cast<std::int64_t>((step + 1) / 2 * 2));
          }
          for (const std::size_t step : {1u, 3u}) {
            const Rows model;
            std::vector<torch::Tensor> sums;
            std::size_t p = 0;
            for (const torch::Tensor& parameter : model->parameters()) {
              torch::Tensor sum = torch::zeros(parameter.sizes(), torch::kDouble);
              for (std::int64_t m = 0; m < 4 && (p < 2 || step != 1); ++m) {
                sum += gradient_of(p, parameter, static_cast<int>(step), m).to(torch::kDouble);
              }
              sums.push_back(sum.flatten());
              ++p;
            }
            const torch::Tensor exact = torch::cat(sums);
            const torch::Tensor arrived = -4 * (with.moved[step] - with.moved[step - 1]);
            const CompressionUse::Check& check = with.found[step];
            EXPECT_NEAR(check.relative_error,
                        ((arrived - exact).norm() / exact.norm()).item<double>(),
                        1e-5);
            EXPECT_NEAR(check.cosine,
                        (arrived.dot(exact) / (arrived.norm() * exact.norm())).item<double>(),
                        1e-5);
            EXPECT_NEAR(
                check.descent, (arrived.dot(exact) / exact.dot(exact)).item<double>(), 1e-5);
          }
        }
      }
    });
  }
}

// Neither an overflow, which makes the loss scale smaller (and which feedback does not go with),
// nor a step that a rank gives up.
TEST(CompressionCheck, StepsThatAreNotTakenLeaveNoTrace) {
  for (const int size : {1, 2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      for (const char* name : {"int8", "topk:0.1", "powersgd:2"}) {
        const bool scales = !make_compressor(name)->format().feedback;
        for (const int zero : {0, 2, 3}) {
          const EngineOptions options{.zero = zero,
                                      .micro_batches = 4,
                                      .scale_loss = scales,
                                      .compress = make_compressor(name),
                                      .compress_check = 2};
          const Checks calm = train(world, options);
          for (const Trouble trouble : {Trouble::kGivenUp, Trouble::kOverflow}) {
            if (trouble == Trouble::kOverflow && !scales) {
              continue;
            }
            SCOPED_TRACE(std::string(name) + ", stage " + std::to_string(zero) + ", trouble " +
                         std::to_string(static_cast<int>(trouble)));
            const Checks found = train(world, options, trouble);
            for (std::size_t step = 0; step < calm.found.size(); ++step) {
              EXPECT_TRUE(torch::equal(found.moved[step], calm.moved[step])) << step;
              EXPECT_EQ(found.found[step].step, calm.found[step].step);
              EXPECT_EQ(found.found[step].relative_error, calm.found[step].relative_error);
              EXPECT_EQ(found.found[step].cosine, calm.found[step].cosine);
            }
          }
        }
      }
    });
  }
}

TEST(CompressionCheck, IsOfCompressedGradientsOnly) {
  in_world(1, [](const std::shared_ptr<World>& world) {
    Rows model;
    const std::string message = testing::message_of<ConfigError>(
        [&] { Engine(model, Sgd({.lr = 1}), {.compress_check = 3}, world); });
    EXPECT_NE(message.find("compress_check"), std::string::npos) << message;
    EXPECT_NE(message.find("no compressor"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace trireme::compression_check_test
