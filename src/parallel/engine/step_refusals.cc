#include "parallel/engine/step_refusals.h"

namespace trireme::detail {

GradientError not_finite(const Agreement& agreement,
                         const std::string& parameter,
                         std::int64_t step) {
  return GradientError(
      agreement.bad_rank,
      concat(
          "the gradient of parameter {} is not finite on rank {} in step {}: nothing was changed "
          "and the step's gradients are dropped; look at the data, the loss and the learning rate, "
          "or clip",
          {parameter, agreement.bad_rank, step}));
}

GradientError norm_not_finite(std::int64_t step) {
  return GradientError(-1,
                       concat("the norm of the gradient is not finite in step {}, although every "
                              "micro-batch's gradient is: their sum overflows; nothing was changed "
                              "and the step's gradients are dropped",
                              {step}));
}

GradientError overflow_at_least(const Agreement& agreement,
                                const std::string& parameter,
                                std::int64_t step,
                                const LossScaler& scaler) {
  const int rank = agreement.bad_rank;
  return GradientError(
      rank,
      concat("{} is not finite{} in step {} although the loss scale is at its least, {}, after {} "
             "skipped steps: the loss itself is not finite, or too large for float16; look at the "
             "data and the learning rate, clip, or use bfloat16",
             {rank < 0 ? std::string("the norm of the gradient")
                       : concat("the gradient of parameter ", parameter),
              rank < 0 ? "" : concat(" on rank ", rank),
              step,
              scaler.scale(),
              scaler.state().skipped}));
}

ConfigError different_rates(const Agreement& agreement, std::int64_t step) {
  return ConfigError(
      concat("the learning rate differs between ranks in step {}: rank {} has {}, rank {} has {}: "
             "call set_learning_rate() with the same value, and build engines with the same "
             "EngineOptions::schedule, on every rank; nothing was changed",
             {step,
              agreement.lead,
              agreement.lead_rate,
              agreement.other_rate_rank,
              agreement.other_rate}));
}

ConfigError different_bounds(double mine,
                             const ShardedOptimizer::Norm& all,
                             int rank,
                             std::int64_t step) {
  return ConfigError(
      concat("clip_grad_norm: the bound differs between ranks in step {}: rank {} has {}, the "
             "smallest is {} and the largest {}: give every rank the same; nothing was changed and "
             "the step's gradients are dropped",
             {step, rank, mine, all.least_bound, all.most_bound}));
}

}  // namespace trireme::detail
