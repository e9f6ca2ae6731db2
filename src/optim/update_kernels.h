#pragma once

#include "trireme/optim/parameter_slice.h"

namespace trireme::detail {

// The rules' constants for one step, in double; a kernel rounds each once to the slice's dtype.

struct SgdStep {
  double lr, momentum, gradient_share, weight_decay, l1;  // gradient_share = 1 - dampening
  bool nesterov, first;  // first: the momentum starts as the gradient
};

struct AdamStep {
  double beta1, rest1, beta2, rest2;  // rest = 1 - beta
  double step_size;                   // lr / (1 - beta1^t)
  double root_correction;             // sqrt(1 - beta2^t)
  double eps;
  double weight_decay;  // into the gradient
  double shrink;        // decoupled: the parameter is multiplied by it; 1 for none
  double l1;
};

struct AdagradStep {
  double lr, eps, weight_decay, l1;
};

struct LionStep {
  double lr, beta1, rest1, beta2, rest2, shrink, l1;
};

struct LambStep {
  double beta1, rest1, beta2, rest2;
  double first_correction, second_correction;  // 1 - beta^t
  double eps, weight_decay, l1;
  double rate;  // of the second pass: learning rate times trust ratio
};

void update_sgd(const ParameterSlice& slice,
                const GradientTransform& transform,
                const SgdStep& step);
void update_adam(const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const AdamStep& step);
void update_adagrad(const ParameterSlice& slice,
                    const GradientTransform& transform,
                    const AdagradStep& step);
void update_lion(const ParameterSlice& slice,
                 const GradientTransform& transform,
                 const LionStep& step);

// Moves the moments and writes the direction of the step, as long as the slice, to `direction`.
// A low-precision copy in the slice is not touched.
void measure_lamb(const ParameterSlice& slice,
                  const GradientTransform& transform,
                  const LambStep& step,
                  void* direction);
void apply_lamb(const ParameterSlice& slice, const LambStep& step);

}  // namespace trireme::detail
