// Adam and AdamW: where the decay goes is the only difference.
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/adam.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cmath>

#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

// The constants of a step: Kingma and Ba, section 2, the efficient form.
struct AdamStep {
  template <class Options>
  AdamStep(const Options& o, double lr, std::int64_t t)
      : beta1(o.beta1),
        beta2(o.beta2),
        l1(o.l1),
        root_correction(std::sqrt(1 - std::pow(o.beta2, static_cast<double>(t)))),
        // m / (sqrt(v) / sqrt(c) + eps) = m sqrt(c) / (sqrt(v) + eps sqrt(c)): one division, not
        // two
        eps(o.eps * root_correction),
        scaled_step(lr / (1 - std::pow(o.beta1, static_cast<double>(t))) * root_correction) {}

  double beta1, beta2, l1;
  double root_correction, eps, scaled_step;
  double weight_decay = 0;  // into the gradient
  double shrink = 1;        // decoupled: the parameter is multiplied by it
};

#include "optim/formulas/adam.h"

void update_adam(bool amsgrad,
                 const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const AdamStep& step) {
  if (amsgrad) {
    update_with<AmsgradRule, 3>(slice, transform, step);
  } else {
    update_with<AdamRule, 2>(slice, transform, step);
  }
}

}  // namespace

void adam(const AdamOptions& options,
          const ParameterSlice& slice,
          const GradientTransform& transform,
          double lr) {
  AdamStep step(options, lr, slice.step);
  step.weight_decay = options.weight_decay;
  update_adam(options.amsgrad, slice, transform, step);
}

void adamw(const AdamWOptions& options,
           const ParameterSlice& slice,
           const GradientTransform& transform,
           double lr) {
  AdamStep step(options, lr, slice.step);
  step.shrink = 1 - lr * options.weight_decay;
  update_adam(options.amsgrad, slice, transform, step);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {
namespace {

HWY_EXPORT(adam);
HWY_EXPORT(adamw);

template <class O>
Definition<O> adam_definition(const char* name, decltype(Definition<O>::update) update) {
  return {.name = name,
          .fields = {{"lr", &O::lr},
                     {"beta1", &O::beta1, Bound::kBeta},
                     {"beta2", &O::beta2, Bound::kBeta},
                     {"eps", &O::eps},
                     {"weight_decay", &O::weight_decay},
                     {"l1", &O::l1},
                     {"amsgrad", &O::amsgrad}},
          .states =
              [](const O& o, const ParameterInfo&) {
                std::vector<OptimizerState> states{"exp_avg", "exp_avg_sq"};
                if (o.amsgrad) {
                  states.emplace_back("max_exp_avg_sq");
                }
                return states;
              },
          .update = update};
}

}  // namespace

template <>
const Definition<AdamOptions>& definition_of<AdamOptions>() {
  static const auto definition = adam_definition<AdamOptions>(
      "adam", [](const auto& options, const auto& slice, const auto& transform, double lr) {
        HWY_DYNAMIC_DISPATCH(adam)(options, slice, transform, lr);
      });
  return definition;
}

template <>
const Definition<AdamWOptions>& definition_of<AdamWOptions>() {
  static const auto definition = adam_definition<AdamWOptions>(
      "adamw", [](const auto& options, const auto& slice, const auto& transform, double lr) {
        HWY_DYNAMIC_DISPATCH(adamw)(options, slice, transform, lr);
      });
  return definition;
}

}  // namespace detail

template class OptimizerOf<AdamOptions>;
template class OptimizerOf<AdamWOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
