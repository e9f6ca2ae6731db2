#include "train/optimizer_choice.h"

#include <algorithm>
#include <cmath>

#include "trireme/compress/compressor.h"
#include "trireme/core/error.h"
#include "trireme/optim/parameter_groups.h"
#include "trireme/settings/unused.h"
#include "trireme/settings/values.h"

namespace trireme::detail {

std::unique_ptr<Optimizer> optimizer_of(const TrainSettings& s, int world) {
  std::map<std::string, double> settings = optimizer_settings(s);
  settings["lr"] = scaled_rate(s.lr, world, s.lr_scaling);
  std::unique_ptr<Optimizer> rule = make_optimizer(s.optimizer, settings);
  return s.decay_all || s.weight_decay == 0 ? std::move(rule) : without_decay(*rule).clone();
}

Schedule schedule_of(const TrainSettings& s, std::int64_t steps) {
  const std::int64_t warm_up = warm_up_steps(s, steps);
  const std::int64_t total = s.schedule_steps > 0 ? s.schedule_steps : steps;
  const std::int64_t after_warm_up = std::max<std::int64_t>(1, total - warm_up);
  const auto part = [&](std::int64_t given, std::int64_t divisor) {
    return given > 0 ? given : std::max<std::int64_t>(1, steps / divisor);
  };
  using Kind = ScheduleKind;
  Schedule schedule;  // constant, and the base of plateau
  if (s.schedule == Kind::kCosine) {
    schedule = Schedule::cosine(after_warm_up, s.final_factor);
  } else if (s.schedule == Kind::kLinear) {
    schedule = Schedule::linear(after_warm_up, s.final_factor);
  } else if (s.schedule == Kind::kStep) {
    schedule = Schedule::step(part(s.step_every, 3), s.gamma);
  } else if (s.schedule == Kind::kMultiStep) {
    schedule = Schedule::multi_step(s.milestones, s.gamma);
  } else if (s.schedule == Kind::kOneCycle) {
    schedule = Schedule::one_cycle(after_warm_up, s.rise, s.start_factor);
  } else if (s.schedule == Kind::kCyclic) {
    schedule = Schedule::cyclic(part(s.half_period, 10), s.low_factor);
  }
  return warm_up > 0 ? schedule.with_warm_up(warm_up, 1.0 / static_cast<double>(warm_up + 1))
                     : schedule;
}

std::string schedule_ends_early(const TrainSettings& s, std::int64_t steps) {
  const bool has_end = s.schedule == ScheduleKind::kCosine || s.schedule == ScheduleKind::kLinear ||
                       s.schedule == ScheduleKind::kOneCycle;
  if (!has_end || s.schedule_steps == 0 || s.schedule_steps >= steps) {
    return "";
  }
  return concat(
      "warning: the schedule ends after {} of {} steps (schedule_steps); the others are taken with "
      "a "
      "learning rate of {}",
      {s.schedule_steps, steps, s.lr * schedule_of(s, steps).factor(steps - 1)});
}

std::string zero_eps(const TrainSettings& s) {
  return s.eps != 0 || !why_unused("eps", s).empty() ? ""
                                                     : "warning: eps is 0: a weight whose gradient "
                                                       "is exactly 0 becomes 0 / 0, which is not "
                                                       "a number; choose a small one (--eps 1e-8)";
}

EngineOptions engine_options_of(const TrainSettings& s, std::int64_t steps) {
  EngineOptions options;
  options.zero = static_cast<int>(s.zero);
  options.placement = s.placement;
  options.sum_order = s.sum_order;
  options.clip_norm = s.clip_norm;
  options.clip_value = s.clip_value;
  options.ema_decay = s.ema_decay;
  options.sparse_update = s.sparse_update;
  options.schedule = schedule_of(s, steps);
  const OffloadPlace offload = offload_place(s);
  options.offload = offload.host              ? Offload::host()
                    : !offload.folder.empty() ? Offload::disk(offload.folder)
                                              : Offload{};
  options.precision = s.precision == TrainPrecision::kBFloat16  ? Precision::kBFloat16
                      : s.precision == TrainPrecision::kFloat16 ? Precision::kFloat16
                                                                : Precision::kAsModel;
  options.round_weights = s.round_weights == "none" ? nullptr : make_compressor(s.round_weights);
  options.prune.fraction = s.prune;
  options.prune.begin = s.prune_begin;
  options.prune.end = s.prune_end > 0 ? s.prune_end : std::max(s.prune_begin, steps / 2);
  options.prune.every = s.prune_every;
  options.loss_scale.initial = s.loss_scale_initial;
  options.loss_scale.growth_interval = s.loss_scale_window;
  options.unit_bytes = static_cast<std::size_t>(s.unit_bytes);
  options.bucket_bytes = static_cast<std::size_t>(s.bucket_bytes);
  return options;
}

}  // namespace trireme::detail
