#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "optim/rules/adagrad.cc"
// clang-format off: foreach_target.h must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/element_pass-inl.h"
#include "optim/rule-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace {

#include "optim/formulas/adagrad.h"

}  // namespace

void adagrad(const AdagradOptions& options,
             const ParameterSlice& slice,
             const GradientTransform& transform,
             double lr) {
  const double decayed = lr / (1 + static_cast<double>(slice.step - 1) * options.lr_decay);
  update_with<AdagradRule, 1>(slice, transform, PlainStep<AdagradOptions>{options, decayed});
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme {
namespace detail {

HWY_EXPORT(adagrad);

template <>
const Definition<AdagradOptions>& definition_of<AdagradOptions>() {
  using O = AdagradOptions;
  static const Definition<O> definition{
      .name = "adagrad",
      .fields = {{"lr", &O::lr},
                 {"lr_decay", &O::lr_decay},
                 {"eps", &O::eps},
                 {"weight_decay", &O::weight_decay},
                 {"l1", &O::l1}},
      .states = [](const O&, const ParameterInfo&) { return std::vector<OptimizerState>{"sum"}; },
      .update =
          [](const O& o, const auto& slice, const auto& transform, double lr) {
            HWY_DYNAMIC_DISPATCH(adagrad)(o, slice, transform, lr);
          },
      .leaves_untouched = [](const O& o) { return o.weight_decay == 0 && o.l1 == 0 && o.eps > 0; }};
  return definition;
}

}  // namespace detail

template class OptimizerOf<AdagradOptions>;

}  // namespace trireme
#endif  // HWY_ONCE
