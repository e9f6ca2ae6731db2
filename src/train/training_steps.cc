// What a training does in a step, and evaluations between steps.

#include <cmath>
#include <utility>

#include "train/averaged_weights.h"
#include "train/rank_changes.h"
#include "train/steps_by_ranks.h"
#include "train/training.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/seconds_since.h"
#include "trireme/observe/throughput.h"

namespace trireme::detail {
namespace {

using Time = std::chrono::steady_clock;

// Per-sample results of a larger set would fill memory, not a table.
constexpr std::int64_t kMostSampleResults = 1'000'000;

// An engine knows nothing of flags, which are what most people can change.
template <class Action>
StepRunner::Outcome naming_flags(const TrainSettings& settings, const Action& action) {
  try {
    return action();
  } catch (const GradientError& error) {
    const bool clips = settings.clip_norm > 0;
    throw GradientError(
        error.rank(),
        concat("{}: try a lower --lr (it was {}), or {}",
               {error.what(),
                settings.lr,
                clips ? concat("a lower --clip-norm (it was ", settings.clip_norm, ")")
                      : std::string("--clip-norm 1")}));
  }
}

}  // namespace

bool Training::take_step() {
  if (settings_.record_samples && leads()) {
    observer_->samples(runner_.samples_of_next_step());
  }
  const bool histograms =
      settings_.histogram_every > 0 && (runner_.next_step() + 1) % settings_.histogram_every == 0;
  begin_step_of_run(runner_.next_step() + 1);
  const StepRunner::Outcome outcome = naming_flags(settings_, [&] {
    return runner_.run({.wants_stop = stop_ && stop_(), .failure = checkpoints_.failure()},
                       histograms ? [this] { show_gradients(); } : std::function<void()>());
  });
  count(outcome);
  report(outcome);
  if (histograms) {
    show_parameters();
  }
  return outcome.stop;
}

void Training::count(const StepRunner::Outcome& outcome) {
  append_steps(progress_.steps_by_ranks,
               {runner_.next_step(), runner_.next_step(), world_->size()});
  progress_.seconds += outcome.seconds;
  if (!outcome.phase_news.empty()) {
    progress_.phase_changes.push_back(outcome.phase_news);
  }
  progress_.loss = outcome.loss;
  progress_.comm_seconds += outcome.comm_seconds;
  progress_.data_seconds += outcome.data_seconds;
  progress_.tensor_bytes = std::max(progress_.tensor_bytes, outcome.tensor_bytes);
  progress_.samples += outcome.samples;
  if (progress_.untimed_steps == 0) {  // that it stays, also where the run is made longer later
    progress_.untimed_steps = untimed_steps(runner_.steps());
  }
  if (runner_.next_step() > progress_.untimed_steps) {
    progress_.timed_seconds += outcome.seconds;
    progress_.timed_samples += outcome.samples;
  }
}

std::int64_t Training::tokens_in(std::int64_t samples) const {
  return judged_.task->predicts_tokens() ? samples * (judged_.task->shape().length - 1) : 0;
}

void Training::report(const StepRunner::Outcome& outcome) {
  if (!leads()) {
    return;
  }
  const auto begin = Time::now();
  StepReport report;
  report.step = runner_.next_step();
  report.steps = runner_.steps();
  report.epoch = runner_.epoch();
  report.loss = outcome.loss;
  report.learning_rate = outcome.learning_rate;
  report.gradient_norm = outcome.gradient_norm;
  report.seconds = outcome.seconds;
  report.samples = outcome.samples;
  report.tokens = tokens_in(outcome.samples);
  report.data_seconds = outcome.data_seconds;
  report.comm_seconds = outcome.comm_seconds;
  report.record_seconds = last_record_seconds_;
  report.rank_bytes = outcome.rank_bytes;
  const CompressionUse use = runner_.compression();
  const std::int64_t sent =
      use.sent_bytes + runner_.averaging().sent_bytes + runner_.stale_sent_bytes();
  report.sent_bytes = sent - std::exchange(sent_bytes_, sent);
  if (std::exchange(checked_step_, use.check.step) != use.check.step) {
    report.check = use.check;
  }
  report.skipped = outcome.skipped;
  report.averaged_every = outcome.averaged_every;
  report.gpus = gpu_watch_ ? gpu_watch_->look() : std::nullopt;
  // As fast as the steps since this run was resumed: before that it may have had other ranks.
  report.seconds_left = (progress_.seconds - first_seconds_) /
                        static_cast<double>(report.step - first_step_) *
                        static_cast<double>(report.steps - report.step);
  observer_->step(report);
  last_record_seconds_ = seconds_since(begin);
  progress_.record_seconds += last_record_seconds_;
}

void Training::show_gradients() {
  for (const auto& [name, parameter] : trained_parameters(runner_.engine(), *judged_.module)) {
    const at::Tensor gradient = runner_.engine().grad(name);
    if (leads() && gradient.defined()) {
      show("gradients/" + name, gradient, runner_.next_step() + 1);
    }
  }
}

void Training::show_parameters() {
  if (leads()) {
    for (const auto& item : judged_.module->named_parameters()) {
      show("parameters/" + item.key(), item.value(), runner_.next_step());
    }
  }
  world_->barrier().wait();
}

void Training::show(const std::string& tag, const at::Tensor& tensor, std::int64_t step) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  observer_->values(
      tag, step, {values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel())});
}

bool Training::is_due() const {
  if (!data_.held_out || runner_.next_step() == runner_.steps()) {
    return false;  // the last one is finish()'s
  }
  return settings_.eval_every > 0
             ? runner_.next_step() % settings_.eval_every == 0
             : std::floor(runner_.epoch()) > std::floor(runner_.epoch_before());
}

bool Training::is_over() const {
  return runner_.next_step() >= runner_.steps() || is_stalled() || is_replayed();
}

bool Training::is_stalled() const {
  return settings_.early_stop > 0 && progress_.without_improvement >= settings_.early_stop;
}

bool Training::has_stalled() {
  if (!is_stalled()) {
    return false;
  }
  say(concat("stopping: {} has not improved in {}; it was best in step {}{}",
             {settings_.best,
              counted(progress_.without_improvement, "evaluation"),
              progress_.best_step,
              first_step_ > 0 && runner_.next_step() == first_step_ && settings_.folds == 0
                  ? concat("; nothing is left to train", how_to_train_longer("--early-stop 0"))
                  : ""}));
  return true;
}

bool Training::evaluate_now(bool last) {
  const bool keep = last && data_.held_out->size() <= kMostSampleResults;
  Evaluation found;
  runner_.with_mean([&] {
    found = evaluate(judged_,
                     *judged_.task,
                     *data_.held_out,
                     {.batch = settings_.eval_batch,
                      .keep_samples = keep,
                      .stop = [this] { return stop_ && stop_(); }},
                     *world_);
  });
  if (found.interrupted) {
    return false;
  }
  result_.evaluation = std::move(found);
  if (progress_.evaluated_step == runner_.next_step()) {
    return true;  // the same weights again, for each sample's result: nothing is decided anew
  }
  const Evaluation& evaluation = result_.evaluation;
  const bool better = progress_.judge(runner_.next_step(), evaluation.metrics, settings_.best);
  if (goal_) {
    progress_.aim(*goal_, run_seconds());
  }
  if (settings_.schedule == ScheduleKind::kPlateau) {
    plateau_.observe(evaluation.metrics.at(settings_.best));
    runner_.engine().set_learning_rate(runner_.base_rate() * plateau_.factor());
  }
  if (leads()) {
    observer_->evaluated(runner_.next_step(), evaluation, better);
  }
  if (better && settings_.save_weights) {
    keep_weights("best");
  }
  return true;
}

}  // namespace trireme::detail
