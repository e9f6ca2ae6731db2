#include <algorithm>
#include <cmath>

#include "optim/checks.h"
#include "optim/update_kernels.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements whose direction stays in the nearest cache

detail::LambStep lamb_step(const LambOptions& options, std::int64_t t) {
  const auto steps = static_cast<double>(t);
  detail::LambStep step{};
  step.beta1 = options.beta1;
  step.rest1 = 1 - options.beta1;
  step.beta2 = options.beta2;
  step.rest2 = 1 - options.beta2;
  step.first_correction = 1 - std::pow(options.beta1, steps);
  step.second_correction = 1 - std::pow(options.beta2, steps);
  step.eps = options.eps;
  step.weight_decay = options.weight_decay;
  step.l1 = options.l1;
  return step;
}

// A bound on |m^ / (sqrt(v^) + eps)|, known before the first pass so that the sums of squares need
// no pass of their own to find the largest. By Cauchy and Schwarz, with r = beta1^2 / beta2,
// |m| <= (1 - beta1) / sqrt(1 - beta2) * sqrt(1 + r + ... + r^(t-1)) * sqrt(v).
double direction_bound(const LambOptions& options, const detail::LambStep& step, std::int64_t t) {
  const double r = options.beta1 * options.beta1 / std::max(options.beta2, 1e-6);
  const auto steps = static_cast<double>(t);
  const double series = r == 1 ? steps : (1 - std::pow(r, steps)) / (1 - r);
  return (1 - options.beta1) / std::sqrt(1 - options.beta2) * std::sqrt(series) *
         std::sqrt(step.second_correction) / step.first_correction;
}

// Elements [first, first + count) of a slice.
ParameterSlice part_of(const ParameterSlice& slice, std::int64_t first, std::int64_t count) {
  const std::int64_t offset = first * static_cast<std::int64_t>(dtype_bytes(slice.dtype));
  ParameterSlice part = slice;
  part.numel = count;
  part.master = static_cast<std::byte*>(slice.master) + offset;
  part.gradient = static_cast<const std::byte*>(slice.gradient) + offset;
  for (std::size_t k = 0; k < 2; ++k) {
    part.states[k] = static_cast<std::byte*>(slice.states[k]) + offset;
  }
  part.low = nullptr;
  return part;
}

}  // namespace

double Lamb::Measure::trust_ratio() const {
  const double parameter_norm = parameter.norm();
  const double direction_norm = direction.norm();
  return parameter_norm > 0 && direction_norm > 0 ? parameter_norm / direction_norm : 1;
}

Lamb::Lamb(const LambOptions& options) : options_(options) {
  detail::check_rate("lamb", options.lr);
  detail::check_beta("lamb", "beta1", options.beta1);
  detail::check_beta("lamb", "beta2", options.beta2);
  // Beyond it the direction has no bound that holds for all steps, and its norm no exact sum.
  TRIREME_CHECK(options.beta1 * options.beta1 <= options.beta2,
                "lamb: beta1^2 must not be larger than beta2, found beta1 ",
                options.beta1,
                " and beta2 ",
                options.beta2);
  detail::check_positive("lamb", "eps", options.eps);
  detail::check_not_negative("lamb", "weight_decay", options.weight_decay);
  detail::check_not_negative("lamb", "l1", options.l1);
}

Lamb::Measure Lamb::measure(const ParameterSlice& slice,
                            const GradientTransform& transform,
                            double largest,
                            std::int64_t numel) const {
  detail::check_slice(*this, slice);
  const detail::LambStep step = lamb_step(options_, slice.step);
  const SquareQuanta parameter_quanta = SquareQuanta::of(largest, numel);
  // Twice the bound leaves room for the roundings on the way.
  const double bound =
      2 * (direction_bound(options_, step, slice.step) + options_.weight_decay * largest);
  const SquareQuanta direction_quanta = SquareQuanta::of(bound, numel);
  Measure measure;
  alignas(64) std::byte direction[kBlock * sizeof(double)];
  for (std::int64_t first = 0; first < slice.numel; first += kBlock) {
    const ParameterSlice part = part_of(slice, first, std::min(kBlock, slice.numel - first));
    detail::measure_lamb(part, transform, step, direction);
    measure.parameter.add(sum_squares(slice.dtype, part.master, part.numel, parameter_quanta));
    measure.direction.add(sum_squares(slice.dtype, direction, part.numel, direction_quanta));
  }
  return measure;
}

void Lamb::apply(const ParameterSlice& slice, double trust_ratio, double lr) const {
  detail::check_slice(*this, slice);
  detail::LambStep step = lamb_step(options_, slice.step);
  step.rate = lr * trust_ratio;
  detail::apply_lamb(slice, step);
}

void Lamb::update(const ParameterSlice& slice,
                  const GradientTransform& transform,
                  double lr) const {
  const double largest = largest_magnitude(slice.dtype, slice.master, slice.numel);
  apply(slice, measure(slice, transform, largest, slice.numel).trust_ratio(), lr);
}

}  // namespace trireme
