#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/sgd.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"
#include "trireme/core/error.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

struct SgdStep {
  const SgdOptions& options;
  double lr;
  bool first;  // the momentum starts as the gradient
};

#include "optim/formulas/sgd.h"

}  // namespace

void sgd(const SgdOptions& options,
         const ParameterSlice& slice,
         const GradientTransform& transform,
         double lr) {
  const SgdStep step{options, lr, slice.step == 1};
  if (options.momentum != 0) {
    update_with<SgdRule, 1>(slice, transform, step);
  } else {
    update_with<SgdRule, 0>(slice, transform, step);
  }
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {

HWY_EXPORT(sgd);

template <>
const Definition<SgdOptions>& definition_of<SgdOptions>() {
  using O = SgdOptions;
  static const Definition<O> definition{
      .name = "sgd",
      .fields = {{"lr", &O::lr},
                 {"momentum", &O::momentum},
                 {"dampening", &O::dampening, Bound::kAnyNumber},
                 {"weight_decay", &O::weight_decay},
                 {"l1", &O::l1},
                 {"nesterov", &O::nesterov}},
      .states =
          [](const O& o, const ParameterInfo&) {
            return o.momentum != 0 ? std::vector<OptimizerState>{"momentum_buffer"}
                                   : std::vector<OptimizerState>{};
          },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            HWY_DYNAMIC_DISPATCH(sgd)(o, slice, transform, lr);
          },
      .check =
          [](const O& o) {
            TRIREME_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
                          "sgd: nesterov needs a momentum above 0 and no dampening, found momentum "
                          "{} and dampening {}",
                          {o.momentum, o.dampening});
          },
      .leaves_untouched =
          [](const O& o) { return o.momentum == 0 && o.weight_decay == 0 && o.l1 == 0; }};
  return definition;
}

}  // namespace detail

template class OptimizerOf<SgdOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
