#pragma once

#include <cstdint>
#include <string>

#include "parallel/engine/sharded_optimizer.h"
#include "parallel/gradient/round_records.h"
#include "trireme/core/error.h"
#include "trireme/optim/loss_scaler.h"

// Why a step is not taken: nothing was changed, and all ranks throw the same. `step` counts from 1,
// `parameter` is the name of Agreement::bad_parameter.

namespace trireme::detail {

GradientError not_finite(const Agreement& agreement,
                         const std::string& parameter,
                         std::int64_t step);
// Of a sum whose terms are finite.
GradientError norm_not_finite(std::int64_t step);
// Although the loss scale cannot become smaller.
GradientError overflow_at_least(const Agreement& agreement,
                                const std::string& parameter,
                                std::int64_t step,
                                const LossScaler& scaler);
ConfigError different_rates(const Agreement& agreement, std::int64_t step);
// Bounds of clip_grad_norm().
ConfigError different_bounds(double mine,
                             const ShardedOptimizer::Norm& all,
                             int rank,
                             std::int64_t step);

}  // namespace trireme::detail
