// Half precision with loss scaling, LAMB, Lion and float64 beside a training that is written down
// from the papers in LibTorch operations (formula_reference.h): the same bits where the formulas
// leave no choice of rounding, else within what rounding can make of it; and the same bits in every
// mode.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/compare.h"
#include "parity/formula_reference.h"
#include "support/ranks.h"

namespace trireme::formula_test {
namespace {

using testing::Board;
using testing::Case;
using testing::Formula;
using testing::FormulaScale;
using testing::FormulaTraining;
using testing::Mode;
using testing::Result;
using testing::Trained;

struct Recipe {
  Case item;
  Formula formula;
  // Roundings of a master in a step that the formula, in double, does otherwise than we do. 0:
  // none, all bits are the formula's; elsewhere it computes its gradients from our parameters, so
  // that only these roundings add up (FormulaTraining::follow).
  int roundings = 0;
};

template <class O, class Options>
std::function<std::unique_ptr<Optimizer>()> with(const Options& options) {
  return [options] { return std::make_unique<O>(options); };
}

std::shared_ptr<testing::TestModel> in_double(std::shared_ptr<testing::TestModel> model) {
  model->to(torch::kDouble);
  return model;
}

// The factor of the decay, its product with the master, and what is subtracted from that; LAMB has
// no factor of its own. What is subtracted is hundreds of times smaller than masters and rounded
// that much finer.
constexpr int kAdamW = 3;
constexpr int kLamb = 2;

std::vector<Recipe> recipes() {
  const auto sgd = with<Sgd>(SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3});
  const auto sgd_rule = testing::sgd_formula(0.05, 0.9, 1e-3);
  const auto adamw = with<AdamW>(AdamWOptions{.lr = 3e-3, .weight_decay = 0.05});
  const auto adamw_rule = testing::adamw_formula(3e-3, 0.05);
  const auto lion = with<Lion>(LionOptions{.lr = 1e-3, .weight_decay = 0.1});
  const auto lion_rule = testing::lion_formula(1e-3, 0.1);
  const auto lamb = with<Lamb>(LambOptions{.lr = 1e-2});
  const auto lamb_rule = testing::lamb_formula(1e-2, 0.01);
  // So large at first that nine steps overflow whatever the gradients, and growing so often that
  // more do.
  const LossScalerOptions scaling{.initial = 0x1p24, .growth_interval = 3, .most = 0x1p40};
  const FormulaScale scale{.scale = 0x1p24, .growth_interval = 3};
  const EngineOptions half{.precision = Precision::kFloat16,
                           .loss_scale = scaling,
                           .unit_bytes = 400,
                           .bucket_bytes = 300};
  EngineOptions clipped = half;
  clipped.clip_norm = 0.2;
  const EngineOptions brain{
      .precision = Precision::kBFloat16, .unit_bytes = 400, .bucket_bytes = 300};
  const EngineOptions plain{.unit_bytes = 400, .bucket_bytes = 300};
  const auto odd = testing::make_odd_layers;
  const auto tied = testing::make_tied_and_unused;
  const auto attention = testing::make_attention;
  const auto odd64 = [] { return in_double(testing::make_odd_layers()); };
  const auto tied64 = [] { return in_double(testing::make_tied_and_unused()); };
  return {
      {{"float16 sgd, odd", odd, sgd, 0, half},
       {.rule = sgd_rule, .type = at::kHalf, .precise = at::kFloat, .scale = scale}},
      {{"float16 sgd, attention", attention, sgd, 0, half},
       {.rule = sgd_rule, .type = at::kHalf, .precise = at::kFloat, .scale = scale}},
      {{"float16 lion, odd", odd, lion, 0, half},
       {.rule = lion_rule, .type = at::kHalf, .precise = at::kFloat, .scale = scale}},
      {{"bfloat16 sgd, odd", odd, sgd, 0, brain},
       {.rule = sgd_rule, .type = at::kBFloat16, .precise = at::kFloat}},
      {{"bfloat16 lion, tied", tied, lion, 0, brain},
       {.rule = lion_rule, .type = at::kBFloat16, .precise = at::kFloat}},
      {{"float32 sgd, tied", tied, sgd, 0, plain},
       {.rule = sgd_rule, .type = at::kFloat, .precise = at::kFloat}},
      {{"float32 lion, odd", odd, lion, 0, plain},
       {.rule = lion_rule, .type = at::kFloat, .precise = at::kFloat}},
      {{"float64 sgd, odd", odd64, sgd, 0, plain}, {.rule = sgd_rule, .type = at::kDouble}},
      {{"float64 lion, tied", tied64, lion, 0, plain}, {.rule = lion_rule, .type = at::kDouble}},
      {{"float64 adamw, tied", tied64, adamw, 0, plain},
       {.rule = adamw_rule, .type = at::kDouble},
       kAdamW},
      {{"float64 lamb, odd", odd64, lamb, 0, plain},
       {.rule = lamb_rule, .type = at::kDouble},
       kLamb},
      {{"float32 lamb, tied", tied, lamb, 0, plain},
       {.rule = lamb_rule, .type = at::kFloat},
       kLamb},
      {{"float16 adamw, odd, clipped", odd, adamw, 0, clipped},
       {.rule = adamw_rule, .type = at::kHalf, .scale = scale, .clip_norm = 0.2},
       kAdamW},
      {{"float16 lamb, odd", odd, lamb, 0, half},
       {.rule = lamb_rule, .type = at::kHalf, .scale = scale},
       kLamb},
      {{"bfloat16 adamw, odd", odd, adamw, 0, brain},
       {.rule = adamw_rule, .type = at::kBFloat16},
       kAdamW},
      {{"bfloat16 adamw, attention", attention, adamw, 0, brain},
       {.rule = adamw_rule, .type = at::kBFloat16},
       kAdamW},
      {{"bfloat16 lamb, odd", odd, lamb, 0, brain},
       {.rule = lamb_rule, .type = at::kBFloat16},
       kLamb},
  };
}

double value_at(Dtype dtype, const std::byte* data, std::int64_t i) {
  switch (dtype) {
    case Dtype::kFloat64:
      return reinterpret_cast<const double*>(data)[i];
    case Dtype::kBFloat16:  // a frozen parameter has no master
      return reinterpret_cast<const at::BFloat16*>(data)[i];
    case Dtype::kFloat16:
      return reinterpret_cast<const at::Half*>(data)[i];
    default:
      return reinterpret_cast<const float*>(data)[i];
  }
}

// The engine, and a formula that follows it, if there is one; masters where this rank has all of
// them, which is in a world of one.
Trained train(const Case& item,
              EngineOptions options,
              const std::shared_ptr<World>& world,
              FormulaTraining* follower = nullptr) {
  const auto model = item.model();
  options.micro_batches = testing::kMicroBatches;
  EngineBase engine(model, *item.optimizer(), options, world);
  for (std::int64_t step = 0; step < testing::kSteps; ++step) {
    if (follower != nullptr) {
      follower->follow(*model);
      follower->step();
    }
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(model->loss(step, engine.micro_batch(k)));
      engine.step();
    }
  }
  Trained result;
  result.scale = engine.loss_scale();
  result.skipped = engine.skipped_steps();
  const EngineState state = engine.state();
  std::map<std::string, std::vector<double>> masters;
  for (const StateSlice& slice : state.view.slices) {
    const StateTensor& tensor = state.view.tensors[slice.tensor];
    if (tensor.kind == kWeightKind) {
      auto& values = masters[tensor.name];
      values.resize(static_cast<std::size_t>(tensor.numel()));
      for (std::int64_t i = 0; i < slice.range.size(); ++i) {
        values[static_cast<std::size_t>(slice.range.begin + i)] =
            value_at(tensor.dtype, slice.data, i);
      }
    }
  }
  for (const auto& parameter : model->named_parameters()) {
    const auto& values = masters[parameter.key()];  // a tied one has it under its first name
    result.masters.insert(result.masters.end(), values.begin(), values.end());
  }
  const auto scope = engine.gathered();
  std::vector<const void*> seen;
  for (const torch::Tensor& parameter : model->parameters()) {
    if (std::find(seen.begin(), seen.end(), parameter.unsafeGetTensorImpl()) == seen.end()) {
      seen.push_back(parameter.unsafeGetTensorImpl());
      const auto flat = parameter.detach().to(torch::kDouble).contiguous();
      const auto* data = flat.const_data_ptr<double>();
      result.parameters.insert(result.parameters.end(), data, data + flat.numel());
    }
  }
  return result;
}

// The largest difference, in units of the rounding error of the largest value.
double roundings_between(const std::vector<double>& a,
                         const std::vector<double>& b,
                         bool in_double) {
  double difference = a.size() == b.size() ? 0 : HUGE_VAL;
  double value = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double here = std::abs(a[i] - b[i]);
    difference = here <= difference ? difference : here;  // a NaN counts
    value = std::max(value, std::abs(b[i]));
  }
  return difference / (value * (in_double ? 0x1p-53 : 0x1p-24));
}

void expect_rounded_once(const Trained& trained, at::ScalarType type) {
  const auto masters = torch::tensor(trained.masters, torch::kDouble).to(type).to(torch::kDouble);
  EXPECT_TRUE(torch::equal(masters, torch::tensor(trained.parameters, torch::kDouble)))
      << "parameters are not their masters, rounded";
}

void compare_with_formula(const Recipe& recipe, const Trained& found, const Trained& expected) {
  if (recipe.formula.scale) {
    EXPECT_GE(expected.skipped, 9) << "the recipe does not overflow";
    EXPECT_GE(expected.grown, 2) << "the scale of the recipe does not grow";
  }
  EXPECT_EQ(found.scale, expected.scale);
  EXPECT_EQ(found.skipped, expected.skipped);
  expect_rounded_once(found, recipe.formula.type);
  const double roundings =
      roundings_between(found.masters, expected.masters, recipe.formula.type == at::kDouble);
  std::printf("%s: %.3g roundings\n", recipe.item.name.c_str(), roundings);
  EXPECT_LE(roundings, recipe.roundings * testing::kSteps);
  if (recipe.roundings == 0) {
    ASSERT_EQ(found.masters.size(), expected.masters.size());
    EXPECT_EQ(
        std::memcmp(
            found.masters.data(), expected.masters.data(), found.masters.size() * sizeof(double)),
        0);
  }
}

// One rank with DDP, and three with what is most different from it; in float64, which no other test
// has, with everything.
std::vector<Mode> modes_for(const Recipe& recipe, int size) {
  if (size == 1) {
    return {testing::kModes[0]};
  }
  if (recipe.formula.type == at::kDouble) {
    return {std::begin(testing::kModes), std::end(testing::kModes)};
  }
  return {testing::kModes[2], testing::kModes[4]};
}

// What every rank of every world has: all but the masters.
Result common(Trained trained) {
  trained.masters.clear();
  return trained.to_bytes();
}

TEST(Formula, IsFollowedInEveryPrecision) {
  const std::vector<Recipe> all = recipes();
  const Board board(all.size());
  for (const int size : {1, 3}) {
    testing::fork_ranks(size, [&, job = testing::unique_job()](int rank) {
      at::set_num_threads(1);
      const auto world = init(testing::options_for(job, rank, size));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Case& item = all[i].item;
        for (const Mode& mode : modes_for(all[i], size)) {
          SCOPED_TRACE(item.name + ", " + mode.name + ", rank " + std::to_string(rank) + " of " +
                       std::to_string(size));
          const EngineOptions options = testing::options_in(item, mode, *world);
          if (size > 1) {
            const Result found = common(train(item, options, world));
            EXPECT_TRUE(found == board.get(i)) << "not the bits of one rank with DDP: "
                                               << testing::first_difference(found, board.get(i));
            continue;
          }
          FormulaTraining formula(item, all[i].formula);
          const Trained found =
              train(item, options, world, all[i].roundings == 0 ? nullptr : &formula);
          const Trained expected = all[i].roundings == 0
                                       ? testing::train_by_formula(item, all[i].formula)
                                       : formula.result();
          compare_with_formula(all[i], found, expected);
          board.put(i, common(found));
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme::formula_test
