#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/lamb.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cmath>

#include "optim/directions.h"
#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"
#include "trireme/core/error.h"

// This file is read once per instruction set; what is the same for all, once.
#ifndef TRIREME_OPTIM_LAMB_STEP
#define TRIREME_OPTIM_LAMB_STEP
namespace trireme::detail {
namespace {

struct LambStep {
  LambStep(const LambOptions& o, std::int64_t t, double given_rate)
      : options(o),
        first_correction(1 - std::pow(o.beta1, static_cast<double>(t))),
        second_root(std::sqrt(1 - std::pow(o.beta2, static_cast<double>(t)))),
        rate(given_rate) {}

  const LambOptions& options;
  double first_correction, second_root;
  double rate;  // learning rate times trust ratio
};

}  // namespace
}  // namespace trireme::detail
#endif  // TRIREME_OPTIM_LAMB_STEP

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

#include "optim/formulas/lamb.h"

}  // namespace

void lamb_direction(const LambStep& step,
                    const ParameterSlice& slice,
                    const GradientTransform& transform,
                    void* direction) {
  look_with<LambDirection, 2>(slice, transform, step, direction);
}

void lamb(const LambStep& step, const ParameterSlice& slice, const GradientTransform& transform) {
  update_with<LambRule, 2>(slice, transform, step);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {
namespace {

HWY_EXPORT(lamb_direction);
HWY_EXPORT(lamb);

// A bound on |m^ / (sqrt(v^) + eps)|, known before the pass so that the sums of squares need no
// pass of their own to find the largest. By Cauchy and Schwarz, with r = beta1^2 / beta2,
// |m| <= (1 - beta1) / sqrt(1 - beta2) * sqrt(1 + r + ... + r^(t-1)) * sqrt(v).
double direction_bound(const LambOptions& options, std::int64_t t) {
  const double r = options.beta1 * options.beta1 / std::max(options.beta2, 1e-6);
  const auto steps = static_cast<double>(t);
  const double series = r == 1 ? steps : (1 - std::pow(r, steps)) / (1 - r);
  return (1 - options.beta1) / std::sqrt(1 - options.beta2) * std::sqrt(series) *
         std::sqrt(1 - std::pow(options.beta2, steps)) / (1 - std::pow(options.beta1, steps));
}

void measure_largest(const ParameterSlice& slice, const GradientTransform&, double* numbers) {
  stream_of(slice).largest(master_of(slice), {}, numbers);
}

// The squares of parameter and direction.
void measure_norms(const LambOptions& options,
                   const ParameterSlice& slice,
                   const GradientTransform& transform,
                   double* numbers) {
  const std::int64_t numel = slice.whole->info.numel();
  const double largest = slice.whole->measured[0][0];
  const SquareQuanta parameter_quanta = SquareQuanta::of(largest, numel);
  // Twice the bound leaves room for the roundings on the way.
  const SquareQuanta direction_quanta = SquareQuanta::of(
      2 * (direction_bound(options, slice.step) + options.weight_decay * largest), numel);
  auto* sums = reinterpret_cast<SquareSum*>(numbers);
  const LambStep step(options, slice.step, 0);
  device::Stream& stream = stream_of(slice);
  for_blocks<1>(slice, [&](const ParameterSlice& part, const auto& rooms) {
    HWY_DYNAMIC_DISPATCH(lamb_direction)(step, part, transform, rooms[0].bytes());
    stream.squares(master_of(part), parameter_quanta, {}, &sums[0]);
    stream.squares(rooms[0], direction_quanta, {}, &sums[1]);
  });
}

// The norm of the parameter over that of the direction; 1 where one of them is 0.
double trust_ratio(const std::vector<double>& sums) {
  const double parameter = SquareSum{sums[0], sums[1]}.norm();
  const double direction = SquareSum{sums[2], sums[3]}.norm();
  return parameter > 0 && direction > 0 ? parameter / direction : 1;
}

}  // namespace

template <>
const Definition<LambOptions>& definition_of<LambOptions>() {
  using O = LambOptions;
  static const Definition<O> definition{
      .name = "lamb",
      .fields = {{"lr", &O::lr},
                 {"beta1", &O::beta1, Bound::kBeta},
                 {"beta2", &O::beta2, Bound::kBeta},
                 {"eps", &O::eps, Bound::kPositive},
                 {"weight_decay", &O::weight_decay},
                 {"l1", &O::l1}},
      .states =
          [](const O&, const ParameterInfo&) {
            return std::vector<OptimizerState>{"exp_avg", "exp_avg_sq"};
          },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            const double rate = lr * trust_ratio(slice.whole->measured[1]);
            HWY_DYNAMIC_DISPATCH(lamb)(LambStep(o, slice.step, rate), slice, transform);
          },
      .check =
          [](const O& o) {
            // Beyond it the direction has no bound that holds for all steps, and its norm no exact
            // sum.
            TRIREME_CHECK(
                o.beta1 * o.beta1 <= o.beta2,
                "lamb: beta1^2 must not be larger than beta2, found beta1 {} and beta2 {}",
                {o.beta1, o.beta2});
          },
      .passes = [](const O& o) -> std::vector<OptimizerPass> {
        return {{.combine = OptimizerPass::Combine::kLargest,
                 .count = [](const ParameterInfo&) { return std::size_t{1}; },
                 .measure = measure_largest},
                {.combine = OptimizerPass::Combine::kSum,
                 .count = [](const ParameterInfo&) { return std::size_t{4}; },
                 .measure = [o](const ParameterSlice& slice,
                                const GradientTransform& transform,
                                double* numbers) { measure_norms(o, slice, transform, numbers); }}};
      }};
  return definition;
}

}  // namespace detail

template class OptimizerOf<LambOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
