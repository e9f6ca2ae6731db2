// Pieces of a step, fed by hand: what takes gradients from LibTorch (GradientHooks), how rows
// become sums (SparsePath), and what makes an update of sums (StepEnd).

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include <torch/csrc/autograd/custom_function.h>

#include "parallel/engine/engine_parts.h"
#include "parallel/engine_worlds.h"
#include "parallel/gradient/gradient_hooks.h"
#include "parallel/gradient/sparse_path.h"
#include "parallel/memory/runs.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"

namespace trireme::detail::step_pieces_test {
namespace {

namespace nn = torch::nn;
using engine_worlds::contains;
using testing::fork_world;
using testing::message_of;
using torch::Tensor;

// --- GradientHooks

std::vector<Parameter> parameters_of(const std::vector<Tensor>& tensors) {
  std::vector<Parameter> parameters;
  for (const Tensor& tensor : tensors) {
    Parameter parameter;
    parameter.tensor = tensor;
    parameter.trainable = tensor.requires_grad();
    parameters.push_back(parameter);
  }
  return parameters;
}

Tensor leaf(double value) {
  return torch::full({3}, value).requires_grad_(true);
}

TEST(GradientHooks, HandOverWhatLibTorchWouldStoreOnceAndWhole) {
  const Tensor a = leaf(2), b = leaf(3), unused = leaf(5), frozen = torch::ones({3});
  std::vector<std::pair<std::size_t, Tensor>> seen;
  const auto loss_of = [&] { return (a * b + a * a + frozen * b).sum(); };
  {
    GradientHooks hooks(parameters_of({a, unused, frozen, b}),
                        [&](std::size_t parameter, const Tensor& gradient) {
                          seen.emplace_back(parameter, gradient.clone());
                        });
    const Tensor loss = loss_of();
    EXPECT_EQ(hooks.reachable_from(loss), (std::vector<bool>{true, false, false, true}));
    loss.backward();
    ASSERT_EQ(seen.size(), 2U);
    for (const auto& [parameter, gradient] : seen) {
      // d/da = b + 2a, d/db = a + 1.
      EXPECT_TRUE(torch::equal(gradient, torch::full({3}, parameter == 0 ? 7.0 : 3.0)));
    }
    EXPECT_NE(seen[0].first, seen[1].first);
    EXPECT_FALSE(a.grad().defined() || b.grad().defined()) << "nothing is left to accumulate";
  }
  // Without them, also in a graph that has kept them alive, LibTorch has its way.
  loss_of().backward();
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_TRUE(torch::equal(a.grad(), torch::full({3}, 7.0)));
}

TEST(GradientHooks, GoWithTheirOwnerAlthoughAGraphIsLeft) {
  const Tensor a = leaf(2);
  int calls = 0;
  auto hooks = std::make_unique<GradientHooks>(parameters_of({a}),
                                               [&](std::size_t, const Tensor&) { ++calls; });
  const Tensor loss = (a * a).sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(calls, 1);
  hooks.reset();
  loss.backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(torch::equal(a.grad(), torch::full({3}, 4.0)));
}

// As activation checkpointing does: what it leads to is seen when it runs.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return gradients;
  }
};

TEST(GradientHooks, ExpectAnythingBehindAFunctionOfSomebodysOwn) {
  const Tensor a = leaf(2), b = leaf(3);
  const GradientHooks hooks(parameters_of({a, b}), [](std::size_t, const Tensor&) {});
  EXPECT_EQ(hooks.reachable_from(a.exp().view({3, 1}).sum()), (std::vector<bool>{true, false}));
  EXPECT_EQ(hooks.reachable_from(Recomputed::apply(a).sum()), (std::vector<bool>{true, true}));
}

// --- SparsePath

constexpr std::int64_t kRows = 13;
constexpr std::int64_t kWidth = 3;

struct RowsImpl : nn::Module {
  RowsImpl() {
    register_module("rows", nn::Embedding(nn::EmbeddingOptions(kRows, kWidth).sparse(true)));
  }
};

// Micro-batch `number`'s rows, in no order and with repetitions; of magnitudes so mixed that the
// order of a sum shows in its bits.
Tensor rows_of(std::int64_t number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
  const Tensor rows = torch::randint(0, kRows - 2, {1, 7}, generator, torch::kLong);
  const Tensor values = torch::randn({7, kWidth}, generator, torch::kFloat) *
                        torch::pow(10, torch::randint(-6, 6, {7, 1}, generator, torch::kFloat));
  return torch::sparse_coo_tensor(rows, values, {kRows, kWidth});
}

TEST(SparsePath, AddsTheRowsOfAllRanksInTheirOrder) {
  for (const int size : {1, 2, 3}) {
    fork_world(size, [](World& world) {
      at::set_num_threads(1);
      for (int stage = 0; stage <= 3; ++stage) {
        SCOPED_TRACE(concat("stage ", stage));
        const auto model = std::make_shared<RowsImpl>();
        EngineOptions options;
        options.zero = stage;
        const auto ledger = MemoryLedger::create();
        ModelPlan plan;
        plan.parameters = list_parameters(*model);
        plan.complete(*model, options, world, world);
        const PartContext context{world, world, plan, options, *ledger};
        GradientSums sums(context);
        SparsePath path(context, sums);
        // The last round of a step may be without a rank, or one whose rows do not count.
        enum class Last { kThere, kAbsent, kGivenUp };
        for (const Last last : {Last::kThere, Last::kAbsent, Last::kGivenUp}) {
          Tensor expected = torch::zeros({kRows, kWidth});
          for (std::int64_t round = 0; round < 2; ++round) {
            const auto number = [&](int rank) { return 10 * round + rank; };
            const bool out = round == 1 && last != Last::kThere;
            path.begin_round({});
            if (world.rank() != 0 || !out || last == Last::kGivenUp) {
              EXPECT_TRUE(path.add(0, rows_of(number(world.rank()))));
            }
            path.end_round(/*given_up=*/world.rank() == 0 && out && last == Last::kGivenUp);
            for (int rank = 0; rank < world.size(); ++rank) {
              if (rank != 0 || !out) {
                expected += rows_of(number(rank)).coalesce().to_dense();
              }
            }
          }
          path.finish();
          const Range mine = intersection(plan.ownership.mine(0), {0, kRows * kWidth});
          const Tensor found = torch::empty({mine.size()});
          sums.rows(0).copy(mine, run_of(found));
          EXPECT_EQ(std::memcmp(found.const_data_ptr(),
                                expected.const_data_ptr<float>() + mine.begin,
                                found.nbytes()),
                    0)
              << static_cast<int>(last);
          EXPECT_LE(sums.rows(0).rows().size(), static_cast<std::size_t>(kRows - 2));
          path.end_step(StepOutcome::kUpdated);  // the next sums begin at zero
        }
        path.begin_round({});
        EXPECT_FALSE(path.add(0, rows_of(0) * INFINITY));
        path.end_round(/*given_up=*/true);
      }
    });
  }
}

// --- StepEnd

constexpr double kRate = 0.25;
constexpr std::int64_t kMicroBatches = 4;

struct NetImpl : nn::Module {
  Tensor weight, bias;
  NetImpl() {
    torch::manual_seed(1);
    weight = register_parameter("weight", torch::randn({7, 5}));
    bias = register_parameter("bias", torch::randn({11}));
  }
};

// Parameter 0's of micro-batch m; parameter 1 has one in every other.
Tensor gradient_of(std::size_t parameter, std::int64_t m) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(m) + 100 * parameter);
  return torch::randn(
      parameter == 0 ? at::IntArrayRef({7, 5}) : at::IntArrayRef({11}), generator, torch::kFloat);
}
bool has_gradient(std::size_t parameter, std::int64_t m) {
  return parameter == 0 || m % 2 == 1;
}
Tensor mean_of(std::size_t parameter) {
  Tensor sum;
  for (std::int64_t m = 0; m < kMicroBatches; ++m) {
    if (has_gradient(parameter, m)) {
      sum = sum.defined() ? sum + gradient_of(parameter, m) : gradient_of(parameter, m);
    }
  }
  return sum / kMicroBatches;
}

// This rank's micro-batches of a step, without LibTorch's backward.
void feed(EngineParts& e, bool not_finite = false) {
  for (std::int64_t k = 0; k < e.own_micro_batches(); ++k) {
    const std::int64_t m = e.dealt.number(e.ranks->rank(), k);
    StepPhase::Backward pass(e.phase);
    e.gradients->begin_round(k + 1 == e.own_micro_batches(), {true, true});
    for (const std::size_t parameter : {1, 0}) {
      if (has_gradient(parameter, m)) {
        e.gradients->add(parameter, gradient_of(parameter, m) * (not_finite && m == 1 ? NAN : 1));
      }
    }
    e.gradients->end_round({.took_part = true, .rate = e.rate()});
    pass.finish();
    if (k + 1 < e.own_micro_batches()) {
      e.phase.enter(Phase::kAccumulating);
    }
  }
}

TEST(StepEnd, MakesAnUpdateOfTheMeanAndOfWhatIsDoneToIt) {
  engine_worlds::everywhere(
      kMicroBatches, [](std::shared_ptr<World> world, const EngineOptions& options) {
        const auto model = std::make_shared<NetImpl>();
        const Tensor start[] = {model->weight.detach().clone(), model->bias.detach().clone()};
        EngineParts e(model, Sgd({.lr = kRate}), options, world);
        // As it is.
        feed(e);
        e.end.sum({});
        EXPECT_TRUE(e.phase.is(Phase::kSummed));
        EXPECT_EQ(e.end.agreement().micro_batches, kMicroBatches);
        EXPECT_EQ(e.end.agreement().used, (std::vector<bool>{true, true}));
        Tensor expected[2];
        for (const std::size_t p : {0, 1}) {
          EXPECT_TRUE(torch::equal(e.end.gradient(p), mean_of(p)));
          expected[p] = start[p] - kRate * mean_of(p);
        }
        EXPECT_TRUE(e.end.finish());
        EXPECT_TRUE(e.phase.is(Phase::kBetweenSteps));
        EXPECT_EQ(e.steps, 1);
        for (const std::size_t p : {0, 1}) {
          EXPECT_TRUE(torch::allclose(e.whole(p), expected[p], 1e-6, 1e-7));
        }
        // Edited, then clipped.
        feed(e);
        e.end.sum({});
        const Tensor edited = torch::linspace(-1, 1, 11);
        e.end.set_gradient(1, edited);
        const double norm = std::sqrt(mean_of(0).to(at::kDouble).pow(2).sum().item<double>() +
                                      edited.to(at::kDouble).pow(2).sum().item<double>());
        EXPECT_NEAR(e.end.clip(norm / 2, *world), norm, 1e-6 * norm);
        EXPECT_TRUE(torch::allclose(e.end.gradient(0), mean_of(0) / 2, 1e-5, 1e-7));
        EXPECT_TRUE(e.end.finish());
        EXPECT_TRUE(torch::allclose(e.whole(0), expected[0] - kRate / 2 * mean_of(0), 1e-5, 1e-6));
        EXPECT_TRUE(torch::allclose(e.whole(1), expected[1] - kRate / 2 * edited, 1e-5, 1e-6));
        EXPECT_NEAR(e.norm, norm, 1e-6 * norm);
      });
}

TEST(StepEnd, ThatRefusesOrDropsChangesNothingAndTheNextStepIsWhole) {
  engine_worlds::everywhere(
      kMicroBatches, [](std::shared_ptr<World> world, const EngineOptions& options) {
        const auto model = std::make_shared<NetImpl>();
        const Tensor start[] = {model->weight.detach().clone(), model->bias.detach().clone()};
        EngineParts e(model, Sgd({.lr = kRate}), options, world);
        feed(e, /*not_finite=*/true);
        e.end.sum({});
        const std::string message = message_of<GradientError>([&] { e.end.finish(); });
        // Micro-batch 1 is the second rank's, or the second of one that is alone.
        EXPECT_TRUE(contains(message, concat("not finite on rank ", world->size() > 1 ? 1 : 0)))
            << message;
        feed(e);
        e.end.sum_and_ask({Act::Kind::kDrop, 0});
        e.end.abandon();
        // Nobody has a micro-batch: rounds that all leave out.
        e.end.sum({});
        EXPECT_EQ(e.end.agreement().micro_batches, 0);
        EXPECT_FALSE(e.end.finish());
        EXPECT_EQ(e.steps, 0);
        for (const std::size_t p : {0, 1}) {
          EXPECT_TRUE(torch::equal(e.whole(p), start[p]));
        }
        feed(e);
        e.end.sum({});
        EXPECT_TRUE(torch::equal(e.end.gradient(0), mean_of(0)));
        EXPECT_TRUE(e.end.finish());
      });
}

}  // namespace
}  // namespace trireme::detail::step_pieces_test
