// The pass of a rule (device/host/update_pass-inl.h) over a slice. Included once per instruction
// set, after highway.h, by the file of each rule, whose constructor takes the transform and the
// constants of a step.

#if defined(TRIREME_OPTIM_ELEMENT_PASS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_OPTIM_ELEMENT_PASS_INL_H
#undef TRIREME_OPTIM_ELEMENT_PASS_INL_H
#else
#define TRIREME_OPTIM_ELEMENT_PASS_INL_H
#endif

#include "device/driver.h"
#include "device/host/update_pass-inl.h"
#include "optim/formula_texts.h"
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

// On a device that is not the host: one pass of its stream.
template <template <class> class Rule, int kStates, class T, class Step>
void update_elsewhere(const ParameterSlice& slice,
                      const device::UpdateArrays& arrays,
                      const GradientTransform& transform,
                      const Step& step) {
  const Rule<T> rule(transform, step);
  device::driver(slice.device)
      .stream()
      .update({.name = Rule<T>::kName,
               .texts = formula_texts(),
               .states = kStates,
               .constants = &rule,
               .bytes = sizeof(rule),
               .on_host = &device::HWY_NAMESPACE::update_by<Rule, kStates>},
              arrays);
}

template <template <class> class Rule, int kStates, class Step>
void pass_with(const ParameterSlice& slice,
               const device::UpdateArrays& arrays,
               const GradientTransform& transform,
               const Step& step) {
  if (slice.device.is_host()) {
    device::HWY_NAMESPACE::update_with<Rule, kStates>(arrays, transform, step);
  } else if (slice.dtype == Dtype::kFloat64) {
    update_elsewhere<Rule, kStates, double>(slice, arrays, transform, step);
  } else {
    update_elsewhere<Rule, kStates, float>(slice, arrays, transform, step);
  }
}

// Updates the slice with Rule<T>(transform, step).
template <template <class> class Rule, int kStates, class Step>
void update_with(const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const Step& step) {
  pass_with<Rule, kStates>(slice, arrays_of(slice, nullptr), transform, step);
}

// Writes what Rule<T>(transform, step) returns to `results`, as long as the slice, which stays as
// it is.
template <template <class> class Rule, int kStates, class Step>
void look_with(const ParameterSlice& slice,
               const GradientTransform& transform,
               const Step& step,
               void* results) {
  static_assert(!Rule<float>::kMovesStates);
  pass_with<Rule, kStates>(slice, arrays_of(slice, results), transform, step);
}

// Moves the states, and writes what Rule<T>(transform, step) returns to `results`: the parameter
// stays as it is.
template <template <class> class Rule, int kStates, class Step>
void move_with(const ParameterSlice& slice,
               const GradientTransform& transform,
               const Step& step,
               void* results) {
  static_assert(Rule<float>::kMovesStates);
  pass_with<Rule, kStates>(slice, arrays_of(slice, results), transform, step);
}

}  // namespace trireme::detail::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
