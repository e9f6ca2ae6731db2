#pragma once

#include <cstdint>

namespace trireme {

struct LossScalerOptions {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t growth_interval = 2000;  // steps without overflow before the scale grows
  double least = 1;
  double most = 16777216;
};

// Keeps the loss of float16 training so large that small gradients survive, and so small that large
// ones do not overflow. Scales are powers of two, so that scaling and unscaling change no bit of a
// gradient that does not overflow. Every rank must be told of an overflow on any of them.
class LossScaler {
 public:
  struct State {
    double scale = 1;
    std::int64_t good_steps = 0;
    std::int64_t skipped = 0;
  };

  explicit LossScaler(const LossScalerOptions& options = {});

  // What the loss is multiplied by.
  double scale() const { return state_.scale; }
  // What gradients are multiplied by; exact.
  double unscale() const { return 1 / state_.scale; }

  // It cannot become smaller.
  bool at_least() const { return state_.scale <= options_.least; }

  // After the gradients of a step are known: true when the step is to be taken, false when it is to
  // be skipped because one overflowed.
  bool update(bool overflow);

  const State& state() const { return state_; }
  void restore(const State& state);
  // Throws ConfigError if no scaler can be in this state.
  static void check(const State& state);

 private:
  LossScalerOptions options_;
  State state_;
};

}  // namespace trireme
