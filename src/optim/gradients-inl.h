// Gradients as the rules take them, on vectors. Included once per instruction set, after highway.h
// (hence the toggling guard, Highway's way).

#if defined(TRIREME_OPTIM_GRADIENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPTIM_GRADIENTS_INL_H
#undef TRIREME_OPTIM_GRADIENTS_INL_H
#else
#define TRIREME_OPTIM_GRADIENTS_INL_H
#endif

#include <hwy/highway.h>

#include "trireme/optim/parameter_slice.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Lanes = hn::Vec<hn::ScalableTag<T>>;

#include "optim/formulas/gradients.h"

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
