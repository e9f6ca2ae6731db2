// Gradients that travel as factors (powersgd): against float64 by LibTorch, with the same bits at
// every stage and for any number of ranks.

#include "compress/low_rank.h"

#include <gtest/gtest.h>

#include <ATen/ops/linalg_qr.h>

#include "support/compressed_training.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme::low_rank_test {
namespace {

using testing::fork_ranks;
using testing::message_of;

constexpr std::int64_t kMicroBatches = 4;

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

// Two that travel as factors, one of them with more than two dimensions, and two that do not.
struct ShapesImpl : torch::nn::Module {
  torch::Tensor wide = register_parameter("wide", torch::zeros({150, 20}));
  torch::Tensor bias = register_parameter("bias", torch::zeros({33}));
  torch::Tensor kernel = register_parameter("kernel", torch::zeros({6, 5, 3, 3}));
  torch::Tensor small = register_parameter("small", torch::zeros({3, 4}));
};
TORCH_MODULE(Shapes);

using Gradients =
    std::function<torch::Tensor(const torch::Tensor& parameter, int p, int step, std::int64_t m)>;

torch::Tensor drawn(const torch::Tensor& parameter, int p, int step, std::int64_t m) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * p + 100 * step + m));
  return torch::randn(parameter.sizes(), generator, torch::kFloat);
}

// Micro-batch 1 does not use the kernel in step 1.
bool uses(int p, int step, std::int64_t m) {
  return p != 2 || step != 1 || m != 1;
}

// The loss is linear: gradients are what `gradients` says, whatever the weights are.
std::vector<float> trained(const std::shared_ptr<World>& world,
                           const EngineOptions& options,
                           const Gradients& gradients,
                           int steps,
                           CompressionUse* use = nullptr,
                           std::map<std::string, torch::Tensor>* factors = nullptr) {
  Shapes model;
  Engine engine(model, Sgd({.lr = 1}), options, world);
  if (factors != nullptr) {
    const EngineState state = engine.state();
    for (const StateSlice& slice : state.view.slices) {
      const StateTensor& tensor = state.view.tensors[slice.tensor];
      if (tensor.kind == "factor") {
        (*factors)[tensor.name] =
            torch::from_blob(slice.data, tensor.shape, torch::kFloat).to(torch::kDouble);
      }
    }
  }
  for (int step = 0; step < steps; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      const std::int64_t m = engine.micro_batch(k);
      torch::Tensor loss = torch::zeros({});
      int p = 0;
      for (const torch::Tensor& parameter : model->parameters()) {
        if (uses(p, step, m)) {
          loss = loss + (parameter * gradients(parameter, p, step, m)).sum();
        }
        ++p;
      }
      engine.backward(loss);
      engine.step();
    }
  }
  if (use != nullptr) {
    *use = engine.compression();
  }
  engine.unwrap();
  return testing::flat_weights(*model);
}

EngineOptions with(const std::string& compress, int zero = 0) {
  return {.zero = zero, .micro_batches = kMicroBatches, .compress = make_compressor(compress)};
}

// The algorithm in float64, by LibTorch: of one matrix, all micro-batches, from `q` on.
torch::Tensor reference(const torch::Tensor& parameter, int p, torch::Tensor q, int steps) {
  const std::int64_t rows = parameter.size(0);
  const std::int64_t columns = parameter.numel() / rows;
  torch::Tensor weights = torch::zeros({rows, columns}, torch::kDouble);
  std::vector<torch::Tensor> rest(kMicroBatches, torch::zeros_like(weights));
  for (int step = 0; step < steps; ++step) {
    torch::Tensor sum = torch::zeros_like(weights);
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      if (uses(p, step, m)) {
        torch::Tensor& e = rest[static_cast<std::size_t>(m)];
        e = e + drawn(parameter, p, step, m).reshape({rows, columns}).to(torch::kDouble);
        sum = sum + e;
      }
    }
    const torch::Tensor basis = std::get<0>(at::linalg_qr(sum.mm(q)));
    q = sum.t().mm(basis);
    weights = weights - basis.mm(q.t()) / static_cast<double>(kMicroBatches);
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      if (uses(p, step, m)) {
        torch::Tensor& e = rest[static_cast<std::size_t>(m)];
        e = e - basis.mm(basis.t().mm(e));
      }
    }
  }
  return weights;
}

TEST(LowRank, IsPowerSgdAtEveryStageForAnyNumberOfRanks) {
  constexpr int kSteps = 3;
  for (const int size : {1, 2, 3}) {
    in_world(size, [](const std::shared_ptr<World>& world) {
      const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
      std::map<std::string, torch::Tensor> factors;
      const auto expected = trained(alone, with("powersgd:2"), drawn, kSteps, nullptr, &factors);
      const Shapes model;
      std::int64_t at = 0;
      int p = 0;
      for (const auto& item : model->named_parameters()) {
        const torch::Tensor found =
            torch::from_blob(
                const_cast<float*>(expected.data()) + at, {item->numel()}, torch::kFloat)
                .to(torch::kDouble);
        if (factors.contains(item.key())) {
          const torch::Tensor right = reference(*item, p, factors.at(item.key()), kSteps).flatten();
          EXPECT_LT((found - right).norm().item<double>(), 2e-6 * right.norm().item<double>())
              << item.key();
        } else {
          torch::Tensor sums = torch::zeros(item->sizes());
          for (int step = 0; step < kSteps; ++step) {
            torch::Tensor sum = drawn(*item, p, step, 0);
            for (std::int64_t m = 1; m < kMicroBatches; ++m) {
              sum = sum + drawn(*item, p, step, m);
            }
            sums = sums - sum / kMicroBatches;
          }
          EXPECT_TRUE(torch::equal(found, sums.flatten().to(torch::kDouble))) << item.key();
        }
        at += item->numel();
        ++p;
      }
      EXPECT_EQ(factors.size(), 2u);
      for (int zero = 0; zero <= 3; ++zero) {
        EXPECT_TRUE(
            testing::same_bits(trained(world, with("powersgd:2", zero), drawn, kSteps), expected))
            << zero;
      }
    });
  }
}

// Products of few columns and rows, also ones that are very small; a step of zeros before them.
torch::Tensor of_rank(int rank, const torch::Tensor& parameter, int p, int step, std::int64_t m) {
  if (step == 0) {
    return torch::zeros(parameter.sizes());
  }
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(7 * p));
  const std::int64_t rows = parameter.size(0);
  const torch::Tensor left = torch::randn({rows, rank}, generator, torch::kFloat);
  const torch::Tensor right =
      torch::randn({rank, parameter.numel() / rows}, generator, torch::kFloat);
  return (left.mm(right) * 1e-30 * static_cast<double>(m + step)).reshape(parameter.sizes());
}

TEST(LowRank, LosesNothingOfAGradientOfItsRank) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    for (const int rank : {1, 2, 3}) {
      const Gradients gradients = [&](const auto& parameter, int p, int step, std::int64_t m) {
        return of_rank(rank, parameter, p, step, m);
      };
      EngineOptions exact{.micro_batches = kMicroBatches};
      const auto expected = trained(world, exact, gradients, 3);
      const auto found = trained(world, with("powersgd:2"), gradients, 3);
      double most = 0;
      double off = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        most = std::max(most, std::abs(static_cast<double>(expected[i])));
        off = std::max(off, std::abs(static_cast<double>(expected[i]) - found[i]));
      }
      EXPECT_GT(most, 0);
      if (rank <= 2) {
        EXPECT_LT(off, 1e-6 * most) << rank;
      } else {
        EXPECT_GT(off, 1e-2 * most);
      }
    }
  });
}

TEST(LowRank, SendsTwoFactorsAndTheRest) {
  constexpr std::int64_t kRank = 2;
  const std::int64_t first = kRank * (150 + 6) + 33 + 12 + 4;  // P, what is exact, a count for each
  const std::int64_t second = kRank * (20 + 45);
  for (const int size : {1, 2, 3}) {
    in_world(size, [&](const std::shared_ptr<World>& world) {
      CompressionUse use;
      trained(world, with("powersgd:2", 2), drawn, 3, &use);
      std::int64_t expected = 0;
      for (const std::int64_t numel : {first, second}) {
        const std::int64_t own =
            numel / world->size() + (world->rank() < numel % world->size() ? 1 : 0);
        const std::int64_t rounds = (kMicroBatches + world->size() - 1) / world->size();
        expected += rounds * (numel - own) + own * (world->size() - 1);
      }
      EXPECT_EQ(use.sent_bytes, 3 * 4 * (world->size() == 1 ? 0 : expected));
      EXPECT_EQ(use.exact_bytes > use.sent_bytes, world->size() > 1);
      EXPECT_EQ(use.exact_parameters, (std::vector<std::string>{"bias", "small"}));
    });
  }
}

TEST(LowRank, RanksMayAddUpTheirOwnFirst) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    std::vector<float> first;
    for (int zero = 0; zero <= 3; ++zero) {
      EngineOptions options = with("powersgd:2", zero);
      options.sum_order = SumOrder::kLocalFirst;
      const auto found = trained(world, options, drawn, 3);
      first = first.empty() ? found : first;
      EXPECT_TRUE(testing::same_bits(found, first)) << zero;
    }
    // One rank alone that adds up its micro-batches first has one of the same sum: nothing but
    // rounding differs.
    const auto alone = init(testing::options_for(testing::unique_job(), 0, 1));
    EngineOptions options = with("powersgd:2");
    options.sum_order = SumOrder::kLocalFirst;
    const Gradients always = [](const auto& parameter, int p, int, std::int64_t m) {
      return drawn(parameter, p, 0, m);  // used by all, whatever the step
    };
    const auto one = trained(alone, options, always, 1);
    const auto each = trained(alone, with("powersgd:2"), always, 1);
    double off = 0;
    for (std::size_t i = 0; i < one.size(); ++i) {
      off = std::max(off, std::abs(static_cast<double>(one[i]) - each[i]));
    }
    EXPECT_LT(off, 1e-5);
  });
}

// Neither what is left out nor the factors are those of a step that was not taken.
TEST(LowRank, ForgetsAStepThatIsDropped) {
  in_world(2, [](const std::shared_ptr<World>& world) {
    const auto weights = [&](bool with_bad) {
      Shapes model;
      Engine engine(model, Sgd({.lr = 1}), with("powersgd:2", 1), world);
      for (const int step : {0, 1, 2}) {
        const bool bad = step == 1;
        for (std::int64_t k = 0; k < engine.local_micro_batches() && (with_bad || !bad); ++k) {
          torch::Tensor gradient = drawn(model->wide, 0, step, engine.micro_batch(k));
          gradient[1][1] = bad ? INFINITY : 1;
          engine.backward((model->wide * gradient).sum());
          if (bad && k + 1 == engine.local_micro_batches()) {
            EXPECT_THROW(engine.step(), GradientError);
          } else {
            engine.step();
          }
        }
      }
      engine.unwrap();
      return testing::flat_weights(*model);
    };
    EXPECT_TRUE(testing::same_bits(weights(true), weights(false)));
  });
}

TEST(LowRank, RefusesAModelWithoutMatrices) {
  struct RowImpl : torch::nn::Module {
    torch::Tensor row = register_parameter("row", torch::zeros({1500}));
    torch::Tensor square = register_parameter("square", torch::zeros({8, 8}));
  };
  in_world(1, [](const std::shared_ptr<World>& world) {
    const auto model = std::make_shared<RowImpl>();
    const std::string message = message_of<ConfigError>([&] {
      Engine<RowImpl>(model, Sgd({.lr = 1}), {.compress = make_compressor("powersgd")}, world);
    });
    for (const char* part : {"powersgd:4", "expected a matrix", "row of sizes [1500]", "rank"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    Engine<RowImpl>(model, Sgd({.lr = 1}), {.compress = make_compressor("powersgd:3")}, world);
  });
  for (const char* wrong : {"powersgd:0", "powersgd:1.5", "powersgd:x", "powersgd:2:3"}) {
    EXPECT_NE(message_of<ConfigError>([&] { make_compressor(wrong); }).find("powersgd"),
              std::string::npos);
  }
}

// The same space as LibTorch's QR finds, and what depends on the columns before it is zeros.
TEST(LowRank, MakesColumnsOrthonormal) {
  torch::manual_seed(3);
  torch::Tensor p = torch::randn({50, 3});
  p.select(1, 1).mul_(1e-25);
  const torch::Tensor basis = std::get<0>(at::linalg_qr(p.to(torch::kDouble)));
  detail::orthonormalise(p.data_ptr<float>(), 50, 3);
  const torch::Tensor found = p.to(torch::kDouble);
  EXPECT_LT((found.mm(found.t()) - basis.mm(basis.t())).abs().max().item<double>(), 1e-6);

  torch::Tensor twice = torch::randn({50, 1}).expand({50, 2}).contiguous();
  detail::orthonormalise(twice.data_ptr<float>(), 50, 2);
  EXPECT_NEAR(twice.select(1, 0).norm().item<double>(), 1, 1e-6);
  EXPECT_EQ(twice.select(1, 1).abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace trireme::low_rank_test
