#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme {

// How the learning rate moves: a factor on the base rate as a function of the step, counted from 0.
// A value; the step is all the state there is, so resuming needs nothing else.
class Schedule {
 public:
  Schedule();  // constant

  static Schedule constant();
  // times `gamma` every `every` steps
  static Schedule step(std::int64_t every, double gamma = 0.1);
  // times `gamma` at each of the milestones, which increase
  static Schedule multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);
  // from 1 to `final_factor` over `total` steps along half a cosine, constant after that
  static Schedule cosine(std::int64_t total, double final_factor = 0);
  // from 1 to `final_factor` over `total` steps along a line, constant after that
  static Schedule linear(std::int64_t total, double final_factor = 0);
  // Smith and Topin, "Super-Convergence": up from start_factor to 1 over `rise` of the steps, down
  // to final_factor over the rest, both along half a cosine. The base rate is the peak.
  static Schedule one_cycle(std::int64_t total,
                            double rise = 0.3,
                            double start_factor = 0.04,
                            double final_factor = 4e-6);
  // Smith, "Cyclical Learning Rates": a triangle from low_factor to 1 in `half_period` steps and
  // back, over and over
  static Schedule cyclic(std::int64_t half_period, double low_factor);

  // This schedule, with a line from `start_factor` to 1 over the first `steps` steps in front of
  // it; it then begins with its own step 0.
  Schedule with_warm_up(std::int64_t steps, double start_factor = 0) const;

  double factor(std::int64_t step) const;

 private:
  explicit Schedule(std::function<double(std::int64_t)> factor) : factor_(std::move(factor)) {}
  std::function<double(std::int64_t)> factor_;
};

struct PlateauOptions {
  double gamma = 0.1;       // the factor at each reduction
  int patience = 10;        // observations without improvement that are forgiven
  double threshold = 1e-4;  // relative change that counts as an improvement
  bool larger_is_better = false;
  double least_factor = 0;
};

// Reduces the rate when a metric stops improving. One that is not a number is no improvement, and
// any number is one over it. Its state is small and public: save it with the
// run. All ranks must observe the same value.
class ReduceOnPlateau {
 public:
  struct State {
    double factor = 1;
    double best = 0;
    int bad = 0;
    bool seen = false;
  };

  explicit ReduceOnPlateau(const PlateauOptions& options = {});
  void observe(double metric);
  double factor() const { return state_.factor; }
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  PlateauOptions options_;
  State state_;
};

enum class WorldScaling { kNone, kLinear, kSquareRoot };

// The base rate for a world of `world` ranks where it was found with one (Goyal et al., linear).
double scaled_rate(double lr, int world, WorldScaling scaling);

}  // namespace trireme
