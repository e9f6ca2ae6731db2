#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/lion.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

#include "optim/formulas/lion.h"

}  // namespace

void lion(const LionOptions& options,
          const ParameterSlice& slice,
          const GradientTransform& transform,
          double lr) {
  update_with<LionRule, 1>(slice, transform, PlainStep<LionOptions>{options, lr});
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {

HWY_EXPORT(lion);

template <>
const Definition<LionOptions>& definition_of<LionOptions>() {
  using O = LionOptions;
  static const Definition<O> definition{
      .name = "lion",
      .fields = {{"lr", &O::lr},
                 {"beta1", &O::beta1, Bound::kBeta},
                 {"beta2", &O::beta2, Bound::kBeta},
                 {"weight_decay", &O::weight_decay},
                 {"l1", &O::l1}},
      .states = [](const O&,
                   const ParameterInfo&) { return std::vector<OptimizerState>{"exp_avg"}; },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            HWY_DYNAMIC_DISPATCH(lion)(o, slice, transform, lr);
          }};
  return definition;
}

}  // namespace detail

template class OptimizerOf<LionOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
