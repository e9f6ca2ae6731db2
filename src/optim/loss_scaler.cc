#include "trireme/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"

namespace trireme {
namespace {

void check_power_of_two(const char* name, double value) {
  int exponent = 0;
  TRIREME_CHECK(std::isfinite(value) && value > 0 && std::frexp(value, &exponent) == 0.5,
                "loss scaler: {} must be a power of two, so that scaling is exact, found {}",
                {name, value});
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  check_power_of_two("initial", options.initial);
  check_power_of_two("growth", options.growth);
  check_power_of_two("backoff", options.backoff);
  check_power_of_two("least", options.least);
  check_power_of_two("most", options.most);
  TRIREME_CHECK(options.growth >= 1 && options.backoff < 1,
                "loss scaler: growth must be at least 1 and backoff below 1");
  TRIREME_CHECK(options.growth_interval >= 1,
                "loss scaler: growth_interval must be at least 1, found ",
                options.growth_interval);
  state_.scale = options.initial;
}

void LossScaler::check(const State& state) {
  check_power_of_two("scale", state.scale);
  TRIREME_CHECK(state.good_steps >= 0 && state.skipped >= 0,
                "loss scaler: steps cannot be negative, found good_steps {} and skipped {}",
                {state.good_steps, state.skipped});
}

void LossScaler::restore(const State& state) {
  check(state);
  state_ = state;
}

bool LossScaler::update(bool overflow) {
  if (overflow) {
    state_.scale = std::max(options_.least, state_.scale * options_.backoff);
    state_.good_steps = 0;
    ++state_.skipped;
    return false;
  }
  if (++state_.good_steps >= options_.growth_interval) {
    state_.scale = std::min(options_.most, state_.scale * options_.growth);
    state_.good_steps = 0;
  }
  return true;
}

}  // namespace trireme
