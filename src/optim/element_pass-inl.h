// The pass of a rule (device/host/update_pass-inl.h) over a slice. Included once per instruction
// set, after highway.h, by the file of each rule, whose constructor takes the transform and the
// constants of a step.

#if defined(TRIREME_OPTIM_ELEMENT_PASS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPTIM_ELEMENT_PASS_INL_H
#undef TRIREME_OPTIM_ELEMENT_PASS_INL_H
#else
#define TRIREME_OPTIM_ELEMENT_PASS_INL_H
#endif

#include "device/host/update_pass-inl.h"
#include "optim/gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::detail::HWY_NAMESPACE {

// The arrays of a slice; results go to `target`, to the parameter where that is null.
inline device::UpdateArrays arrays_of(const ParameterSlice& slice, void* target) {
  return {.dtype = slice.dtype,
          .low_dtype = slice.low_dtype,
          .numel = slice.numel,
          .parameter = slice.master,
          .gradient = slice.gradient,
          .states = {slice.states[0], slice.states[1], slice.states[2]},
          .low = target == nullptr ? slice.low : nullptr,
          .result = target};
}

// The constants of a step, where a rule needs no others.
template <class Options>
struct PlainStep {
  const Options& options;
  double lr;
};

// Updates the slice with Rule<T>(transform, step).
template <template <class> class Rule, int kStates, class Step>
void update_with(const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const Step& step) {
  device::HWY_NAMESPACE::update_with<Rule, kStates>(arrays_of(slice, nullptr), transform, step);
}

// Writes what Rule<T>(transform, step) returns to `results`, as long as the slice, which stays as
// it is.
template <template <class> class Rule, int kStates, class Step>
void look_with(const ParameterSlice& slice,
               const GradientTransform& transform,
               const Step& step,
               void* results) {
  static_assert(!Rule<float>::kMovesStates);
  device::HWY_NAMESPACE::update_with<Rule, kStates>(arrays_of(slice, results), transform, step);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
