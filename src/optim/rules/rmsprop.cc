#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/rmsprop.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

#include "optim/formulas/rmsprop.h"

}  // namespace

void rmsprop(const RmspropOptions& options,
             const ParameterSlice& slice,
             const GradientTransform& transform,
             double lr) {
  const PlainStep<RmspropOptions> step{options, lr};
  if (options.momentum != 0 && options.centered) {
    update_with<WholeRmsprop, 3>(slice, transform, step);
  } else if (options.momentum != 0) {
    update_with<MomentumRmsprop, 2>(slice, transform, step);
  } else if (options.centered) {
    update_with<CenteredRmsprop, 2>(slice, transform, step);
  } else {
    update_with<PlainRmsprop, 1>(slice, transform, step);
  }
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {

HWY_EXPORT(rmsprop);

template <>
const Definition<RmspropOptions>& definition_of<RmspropOptions>() {
  using O = RmspropOptions;
  static const Definition<O> definition{
      .name = "rmsprop",
      .fields = {{"lr", &O::lr},
                 {"alpha", &O::alpha, Bound::kBeta},
                 {"eps", &O::eps},
                 {"weight_decay", &O::weight_decay},
                 {"momentum", &O::momentum},
                 {"l1", &O::l1},
                 {"centered", &O::centered}},
      .states =
          [](const O& o, const ParameterInfo&) {
            std::vector<OptimizerState> states{"square_avg"};
            if (o.momentum != 0) {
              states.emplace_back("momentum_buffer");
            }
            if (o.centered) {
              states.emplace_back("grad_avg");
            }
            return states;
          },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            HWY_DYNAMIC_DISPATCH(rmsprop)(o, slice, transform, lr);
          }};
  return definition;
}

}  // namespace detail

template class OptimizerOf<RmspropOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
