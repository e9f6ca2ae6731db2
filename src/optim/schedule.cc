#include "trireme/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/core/error.h"

namespace trireme {
namespace {

void check_steps(const char* schedule, const char* name, std::int64_t steps) {
  TRIREME_CHECK(steps >= 1, schedule, ": ", name, " must be at least 1, found ", steps);
}

// Along half a cosine from `from` to `to` as `progress` goes from 0 to 1.
double half_cosine(double from, double to, double progress) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * std::clamp(progress, 0.0, 1.0))) / 2;
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Schedule::Schedule() : Schedule(constant()) {}

Schedule Schedule::constant() {
  return Schedule([](std::int64_t) { return 1.0; });
}

Schedule Schedule::step(std::int64_t every, double gamma) {
  check_steps("step", "every", every);
  return Schedule([=](std::int64_t at) {
    const std::int64_t reductions = at / every;
    return std::pow(gamma, static_cast<double>(reductions));
  });
}

Schedule Schedule::multi_step(std::vector<std::int64_t> milestones, double gamma) {
  TRIREME_CHECK(std::ranges::is_sorted(milestones), "multi_step: milestones must increase");
  return Schedule([milestones = std::move(milestones), gamma](std::int64_t at) {
    const auto passed = std::ranges::upper_bound(milestones, at) - milestones.begin();
    return std::pow(gamma, static_cast<double>(passed));
  });
}

Schedule Schedule::cosine(std::int64_t total, double final_factor) {
  check_steps("cosine", "total", total);
  return Schedule([=](std::int64_t at) { return half_cosine(1, final_factor, ratio(at, total)); });
}

Schedule Schedule::linear(std::int64_t total, double final_factor) {
  check_steps("linear", "total", total);
  return Schedule(
      [=](std::int64_t at) { return 1 + (final_factor - 1) * std::min(1.0, ratio(at, total)); });
}

Schedule Schedule::one_cycle(std::int64_t total,
                             double rise,
                             double start_factor,
                             double final_factor) {
  check_steps("one_cycle", "total", total);
  TRIREME_CHECK(rise > 0 && rise < 1, "one_cycle: rise must be between 0 and 1, found ", rise);
  // As torch's OneCycleLR: the peak is reached at step rise * total - 1, the end at total - 1.
  const double peak = rise * static_cast<double>(total) - 1;
  const double end = static_cast<double>(total) - 1;
  return Schedule([=](std::int64_t at) {
    const auto now = static_cast<double>(at);
    if (total == 1) {
      return 1.0;  // a single step would else be the end, which trains nothing
    }
    return now <= peak ? half_cosine(start_factor, 1, peak > 0 ? now / peak : 1)
                       : half_cosine(1, final_factor, end > peak ? (now - peak) / (end - peak) : 1);
  });
}

Schedule Schedule::cyclic(std::int64_t half_period, double low_factor) {
  check_steps("cyclic", "half_period", half_period);
  return Schedule([=](std::int64_t at) {
    const std::int64_t phase = at % (2 * half_period);
    const double height = ratio(std::min(phase, 2 * half_period - phase), half_period);
    return low_factor + (1 - low_factor) * height;
  });
}

Schedule Schedule::with_warm_up(std::int64_t steps, double start_factor) const {
  TRIREME_CHECK(steps >= 0, "with_warm_up: steps cannot be negative, found ", steps);
  return Schedule([=, after = factor_](std::int64_t at) {
    return at < steps ? start_factor + (1 - start_factor) * ratio(at, steps) : after(at - steps);
  });
}

double Schedule::factor(std::int64_t step) const {
  TRIREME_CHECK(step >= 0, "a schedule's steps count from 0, found ", step);
  return factor_(step);
}

ReduceOnPlateau::ReduceOnPlateau(const PlateauOptions& options) : options_(options) {
  TRIREME_CHECK(options.gamma > 0 && options.gamma < 1,
                "reduce on plateau: gamma must be between 0 and 1, found ",
                options.gamma);
  TRIREME_CHECK(options.patience >= 0,
                "reduce on plateau: patience cannot be negative, found ",
                options.patience);
}

void ReduceOnPlateau::observe(double metric) {
  const double margin = options_.threshold * std::fabs(state_.best);
  // What is not a number is never better, and any number is better than it: as the best, it would
  // make every later one a failure.
  const bool first = !state_.seen || std::isnan(state_.best);
  const bool better =
      !std::isnan(metric) && (first || (options_.larger_is_better ? metric > state_.best + margin
                                                                  : metric < state_.best - margin));
  if (better) {
    state_.best = metric;
    state_.bad = 0;
    state_.seen = true;
    return;
  }
  if (++state_.bad > options_.patience) {
    state_.factor = std::max(options_.least_factor, state_.factor * options_.gamma);
    state_.bad = 0;
  }
}

double scaled_rate(double lr, int world, WorldScaling scaling) {
  switch (scaling) {
    case WorldScaling::kLinear:
      return lr * world;
    case WorldScaling::kSquareRoot:
      return lr * std::sqrt(static_cast<double>(world));
    default:
      return lr;
  }
}

}  // namespace trireme
