#include <cmath>

#include "optim/checks.h"
#include "optim/update_kernels.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

// The constants of Adam's step `t`: Kingma and Ba, section 2, the efficient form.
detail::AdamStep adam_step(double lr, double beta1, double beta2, double eps, std::int64_t t) {
  const auto steps = static_cast<double>(t);
  detail::AdamStep step{};
  step.beta1 = beta1;
  step.rest1 = 1 - beta1;
  step.beta2 = beta2;
  step.rest2 = 1 - beta2;
  step.step_size = lr / (1 - std::pow(beta1, steps));
  step.root_correction = std::sqrt(1 - std::pow(beta2, steps));
  step.eps = eps;
  step.shrink = 1;
  return step;
}

}  // namespace

std::vector<std::string> Optimizer::state_names() const {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(state_count()));
  for (int i = 0; i < state_count(); ++i) {
    names.push_back("state_" + std::to_string(i));
  }
  return names;
}

Sgd::Sgd(const SgdOptions& options) : options_(options) {
  detail::check_rate("sgd", options.lr);
  detail::check_not_negative("sgd", "momentum", options.momentum);
  detail::check_not_negative("sgd", "weight_decay", options.weight_decay);
  detail::check_not_negative("sgd", "l1", options.l1);
  TRIREME_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                "sgd: nesterov needs a momentum above 0 and no dampening, found momentum ",
                options.momentum,
                " and dampening ",
                options.dampening);
}

void Sgd::update(const ParameterSlice& slice, const GradientTransform& transform, double lr) const {
  detail::check_slice(*this, slice);
  detail::update_sgd(slice,
                     transform,
                     {lr,
                      options_.momentum,
                      1 - options_.dampening,
                      options_.weight_decay,
                      options_.l1,
                      options_.nesterov,
                      slice.step == 1});
}

Adam::Adam(const AdamOptions& options) : options_(options) {
  detail::check_rate("adam", options.lr);
  detail::check_beta("adam", "beta1", options.beta1);
  detail::check_beta("adam", "beta2", options.beta2);
  detail::check_not_negative("adam", "eps", options.eps);
  detail::check_not_negative("adam", "weight_decay", options.weight_decay);
  detail::check_not_negative("adam", "l1", options.l1);
}

void Adam::update(const ParameterSlice& slice,
                  const GradientTransform& transform,
                  double lr) const {
  detail::check_slice(*this, slice);
  auto step = adam_step(lr, options_.beta1, options_.beta2, options_.eps, slice.step);
  step.weight_decay = options_.weight_decay;
  step.l1 = options_.l1;
  detail::update_adam(slice, transform, step);
}

AdamW::AdamW(const AdamWOptions& options) : options_(options) {
  detail::check_rate("adamw", options.lr);
  detail::check_beta("adamw", "beta1", options.beta1);
  detail::check_beta("adamw", "beta2", options.beta2);
  detail::check_not_negative("adamw", "eps", options.eps);
  detail::check_not_negative("adamw", "weight_decay", options.weight_decay);
  detail::check_not_negative("adamw", "l1", options.l1);
}

void AdamW::update(const ParameterSlice& slice,
                   const GradientTransform& transform,
                   double lr) const {
  detail::check_slice(*this, slice);
  auto step = adam_step(lr, options_.beta1, options_.beta2, options_.eps, slice.step);
  step.shrink = 1 - lr * options_.weight_decay;
  step.l1 = options_.l1;
  detail::update_adam(slice, transform, step);
}

Adagrad::Adagrad(const AdagradOptions& options) : options_(options) {
  detail::check_rate("adagrad", options.lr);
  detail::check_not_negative("adagrad", "lr_decay", options.lr_decay);
  detail::check_not_negative("adagrad", "eps", options.eps);
  detail::check_not_negative("adagrad", "weight_decay", options.weight_decay);
  detail::check_not_negative("adagrad", "l1", options.l1);
}

void Adagrad::update(const ParameterSlice& slice,
                     const GradientTransform& transform,
                     double lr) const {
  detail::check_slice(*this, slice);
  const double decayed = lr / (1 + static_cast<double>(slice.step - 1) * options_.lr_decay);
  detail::update_adagrad(
      slice, transform, {decayed, options_.eps, options_.weight_decay, options_.l1});
}

Lion::Lion(const LionOptions& options) : options_(options) {
  detail::check_rate("lion", options.lr);
  detail::check_beta("lion", "beta1", options.beta1);
  detail::check_beta("lion", "beta2", options.beta2);
  detail::check_not_negative("lion", "weight_decay", options.weight_decay);
  detail::check_not_negative("lion", "l1", options.l1);
}

void Lion::update(const ParameterSlice& slice,
                  const GradientTransform& transform,
                  double lr) const {
  detail::check_slice(*this, slice);
  detail::update_lion(slice,
                      transform,
                      {lr,
                       options_.beta1,
                       1 - options_.beta1,
                       options_.beta2,
                       1 - options_.beta2,
                       1 - lr * options_.weight_decay,
                       options_.l1});
}

}  // namespace trireme
