#include "trireme/train/trainer.h"

#include <chrono>
#include <cmath>
#include <exception>

#include <sys/resource.h>

#include <ATen/Parallel.h>

#include "train/averaged_weights.h"
#include "train/run_checkpoints.h"
#include "train/same_data.h"
#include "train/sampling_choice.h"
#include "train/starting_weights.h"
#include "train/step_runner.h"
#include "train/train_progress.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/train/half_speed.h"
#include "trireme/train/weights.h"

namespace trireme {
namespace {

using detail::concat;
using detail::counted;
using detail::RunCheckpoints;
using detail::StepRunner;
using detail::TrainProgress;
using Time = std::chrono::steady_clock;

// Per-sample results of a larger set would fill memory, not a table.
constexpr std::int64_t kMostSampleResults = 1'000'000;
// The first steps warm up caches and allocators: throughput is counted after them.
constexpr std::int64_t kWarmUpSteps = 20;

// Processor time of this process so far.
double processor_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// A run of the loop: steps, and what happens between them.
class Training {
 public:
  Training(const TrainSettings& settings,
           const Trainable& model,
           const Parts& data,
           std::int64_t data_fingerprint,
           const std::shared_ptr<World>& world,
           TrainObserver* observer,
           const std::function<bool()>& stop,
           RunCheckpoints& checkpoints)
      : settings_(settings),
        data_(data),
        world_(world),
        observer_(observer),
        stop_(stop),
        checkpoints_(checkpoints),
        task_(model.task
                  ? model.task
                  : std::make_shared<const Task>(data.train->shape(), settings.loss_weights)),
        runner_(settings,
                model,
                *task_,
                data.train,
                world,
                [this](const std::string& text) { say(text); }),
        judged_{model.module,
                [this](const TensorBatch& batch) { return runner_.scores(batch); },
                task_,
                model.in_parts},
        // A gamma of another schedule may be one that a plateau has no use for.
        plateau_({.gamma = settings.schedule == ScheduleKind::kPlateau ? settings.gamma
                                                                       : PlateauOptions{}.gamma,
                  .patience = static_cast<int>(settings.plateau_patience),
                  .larger_is_better = settings.best != "loss"}) {
    TRIREME_CHECK(settings.loss_weights.empty() || task_->weighs(),
                  "loss_weights: the loss of the model {} takes no weights: leave them out",
                  {settings.model});
    TRIREME_CHECK(settings.best != "accuracy" || task_->shape().classes > 0,
                  "best: this task predicts numbers, which have no accuracy: expected loss");
    TRIREME_CHECK(
        settings.best != "f1" || (task_->classifies() && task_->shape().classes <= kMostClasses),
        "best: f1 is computed for up to ",
        kMostClasses,
        " classes of samples, which this task does not have: expected loss or accuracy");
    TRIREME_CHECK(settings.early_stop == 0 || data.held_out,
                  "early_stop: there is nothing to evaluate on: give --eval-data FILE, or an "
                  "--eval-fraction above 0");
    TRIREME_CHECK(settings.schedule != ScheduleKind::kPlateau || data.held_out,
                  "schedule: plateau follows evaluations, but there is nothing to evaluate on: "
                  "give --eval-data FILE, or an --eval-fraction above 0");
    progress_.training_samples = data.train->size();
    progress_.held_out_samples = data.held_out ? data.held_out->size() : 0;
    progress_.threads = at::get_num_threads();
    progress_.sum_group = world_->sum_group();
    progress_.data_fingerprint = data_fingerprint;
  }

  TrainResult run() {
    if (!judged_.module->is_training()) {
      judged_.module->train();  // else parts that a user has frozen by hand stay so
    }
    begin();
    while (runner_.next_step() < runner_.steps()) {
      if (has_stalled()) {
        result_.status = TrainResult::Status::kStoppedEarly;
        break;
      }
      if (take_step()) {
        result_.status = TrainResult::Status::kInterrupted;
        break;
      }
      if (is_due() && !evaluate_now()) {
        result_.status = TrainResult::Status::kInterrupted;
        break;
      }
      if (checkpoints_.is_due(runner_.next_step()) && runner_.next_step() < runner_.steps()) {
        save();
      }
    }
    finish();
    return result_;
  }

 private:
  bool leads() const { return observer_ != nullptr; }
  double run_seconds() const {
    return progress_.run_seconds + std::chrono::duration<double>(Time::now() - begin_).count();
  }
  double run_processor_seconds() const {
    return progress_.processor_seconds + processor_seconds() - processor_begin_;
  }
  void say(const std::string& text) {
    if (leads()) {
      observer_->message(text);
    }
  }

  // Weights are read by the rank that keeps them; the others wait, since they must not change.
  void keep_weights(const std::string& which) {
    if (leads()) {
      observer_->weights(which, *judged_.module);
    }
    world_->barrier().wait();
  }

  // --- checkpoints

  void begin() {
    if (!checkpoints_.resumed_step()) {
      if (!settings_.weights_from.empty()) {
        detail::begin_with_weights(
            settings_, *judged_.module, runner_.engine(), [this](const std::string& text) {
              say(text);
            });
      }
      runner_.begin();
      if (leads()) {
        TrainBeginning beginning;
        beginning.data = &data_;
        observer_->begins(beginning);
      }
      if (settings_.save_initial) {
        keep_weights("initial");
      }
      return;
    }
    const RunCheckpoints::Loaded loaded = checkpoints_.load(runner_.engine());
    go_on(loaded.progress);
    checkpoints_.take_up();
    if (leads()) {
      observer_->begins({.step = progress_.step,
                         .evaluated = progress_.evaluated_step == progress_.step,
                         .best_step = progress_.best_step,
                         .checkpoint = loaded.path,
                         .ranks = loaded.ranks,
                         .data = &data_});
    }
    say(concat("resuming after step {} with {}, saved by {}",
               {progress_.step, loaded.path, counted(loaded.ranks, "rank")}));
    // One that was interrupted has not waited for its evaluation.
    if (is_due() && progress_.evaluated_step != runner_.next_step()) {
      evaluate_now();  // interrupted: the first step notices it, too
    }
    say_what_is_left();
  }

  // To whoever resumes a run that has come to its end: what there is to do.
  void say_what_is_left() {
    if (runner_.next_step() < runner_.steps() || settings_.folds > 0) {
      return;
    }
    say(concat(
        runner_.steps() == 1 ? "the only step is" : concat("all ", runner_.steps(), " steps are"),
        " done: nothing is left to train; ",
        how_to_train_longer(settings_.steps > 0 ? "--steps N" : "--epochs N")));
  }

  std::string how_to_train_longer(const std::string& flags) const {
    return concat(
        "to train longer: {}{} --allow-changes",
        {settings_.run.empty() ? "" : concat("trireme train --resume ", settings_.run, " "),
         flags});
  }

  void go_on(const TrainProgress& saved) {
    TRIREME_CHECK(
        settings_.allow_changes || (saved.training_samples == progress_.training_samples &&
                                    saved.held_out_samples == progress_.held_out_samples),
        "data: the checkpoint was trained on {} and evaluated on {}, found {} and {}: use the same "
        "data, or --allow-changes",
        {counted(saved.training_samples, "sample"),
         saved.held_out_samples,
         progress_.training_samples,
         progress_.held_out_samples});
    TRIREME_CHECK(settings_.allow_changes || saved.data_fingerprint == 0 ||
                      saved.data_fingerprint == progress_.data_fingerprint,
                  "data: the checkpoint was trained on samples other than those of \"",
                  settings_.data,
                  "\", although their number is the same: use the same data, or --allow-changes");
    TRIREME_CHECK(
        settings_.allow_changes || saved.sum_group == 0 || saved.sum_group == progress_.sum_group,
        "sum_group: the checkpoint was computed with sums of groups of {}, found {}, which changes "
        "the last bits of the result: use --sum-group {}, or --allow-changes",
        {counted(saved.sum_group, "rank"), progress_.sum_group, saved.sum_group});
    TRIREME_CHECK(settings_.allow_changes || saved.threads == progress_.threads,
                  "threads: the checkpoint was computed with {} per rank, found {}, which changes "
                  "the last bits of the result: use --threads {}, or --allow-changes",
                  {saved.threads, progress_.threads, saved.threads});
    TRIREME_CHECK(saved.best.empty() || saved.best.count(settings_.best) > 0,
                  "best: the checkpoint has no ",
                  settings_.best,
                  " of its best evaluation: its note \"train\" is damaged");
    const TrainProgress here = progress_;
    progress_ = saved;
    progress_.training_samples = here.training_samples;
    progress_.held_out_samples = here.held_out_samples;
    progress_.threads = here.threads;
    progress_.sum_group = here.sum_group;
    progress_.data_fingerprint = here.data_fingerprint;
    runner_.go_on(progress_);
    first_step_ = progress_.step;
    plateau_.restore(progress_.plateau);
    runner_.engine().set_learning_rate(runner_.base_rate() * plateau_.factor());
    result_.evaluation.metrics = progress_.evaluation;
  }

  void save() {
    TrainProgress now = progress_;
    now.step = runner_.next_step();
    now.position = runner_.position();
    now.micro_batch = runner_.micro_batch();
    now.plateau = plateau_.state();
    now.run_seconds = run_seconds();
    now.processor_seconds = run_processor_seconds();
    progress_.save_seconds += checkpoints_.save(runner_.engine(), now);
  }

  // --- a step

  // True when somebody wants to stop.
  bool take_step() {
    if (settings_.record_samples && leads()) {
      observer_->samples(runner_.samples_of_next_step());
    }
    const bool histograms =
        settings_.histogram_every > 0 && (runner_.next_step() + 1) % settings_.histogram_every == 0;
    const StepRunner::Outcome outcome =
        runner_.run({.wants_stop = stop_ && stop_(), .failure = checkpoints_.failure()},
                    histograms ? [this] { show_gradients(); } : std::function<void()>());
    count(outcome);
    report(outcome);
    if (histograms) {
      show_parameters();
    }
    return outcome.stop;
  }

  void count(const StepRunner::Outcome& outcome) {
    progress_.seconds += outcome.seconds;
    progress_.loss = outcome.loss;
    progress_.comm_seconds += outcome.comm_seconds;
    progress_.data_seconds += outcome.data_seconds;
    progress_.tensor_bytes = std::max(progress_.tensor_bytes, outcome.tensor_bytes);
    progress_.samples += outcome.samples;
    const std::int64_t warm_up = std::min(kWarmUpSteps, (runner_.steps() - first_step_) / 10);
    if (runner_.next_step() - first_step_ > warm_up) {
      progress_.timed_seconds += outcome.seconds;
      progress_.timed_samples += outcome.samples;
    }
  }

  std::int64_t tokens_in(std::int64_t samples) const {
    return task_->predicts_tokens() ? samples * (task_->shape().length - 1) : 0;
  }

  void report(const StepRunner::Outcome& outcome) {
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
    report.skipped = outcome.skipped;
    report.seconds_left = progress_.seconds / static_cast<double>(report.step) *
                          static_cast<double>(report.steps - report.step);
    observer_->step(report);
    last_record_seconds_ = std::chrono::duration<double>(Time::now() - begin).count();
    progress_.record_seconds += last_record_seconds_;
  }

  void show_gradients() {
    for (const auto& item : judged_.module->named_parameters()) {
      if (!item.value().requires_grad()) {
        continue;
      }
      const at::Tensor gradient = runner_.engine().grad(item.key());
      if (leads() && gradient.defined()) {
        show("gradients/" + item.key(), gradient, runner_.next_step() + 1);
      }
    }
  }

  void show_parameters() {
    if (leads()) {
      for (const auto& item : judged_.module->named_parameters()) {
        show("parameters/" + item.key(), item.value(), runner_.next_step());
      }
    }
    world_->barrier().wait();
  }

  void show(const std::string& tag, const at::Tensor& tensor, std::int64_t step) {
    const at::NoGradGuard no_grad;
    const at::Tensor values = tensor.detach().to(at::kFloat).contiguous();
    observer_->values(
        tag, step, {values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  }

  // --- evaluation

  bool is_due() const {
    if (!data_.held_out || runner_.next_step() == runner_.steps()) {
      return false;  // the last one is finish()'s
    }
    return settings_.eval_every > 0
               ? runner_.next_step() % settings_.eval_every == 0
               : std::floor(runner_.epoch()) > std::floor(runner_.epoch_before());
  }

  // Whether it is time to stop early.
  bool has_stalled() {
    if (settings_.early_stop == 0 || progress_.without_improvement < settings_.early_stop) {
      return false;
    }
    say(concat("stopping: {} has not improved in {}; it was best in step {}{}",
               {settings_.best,
                counted(progress_.without_improvement, "evaluation"),
                progress_.best_step,
                first_step_ > 0 && runner_.next_step() == first_step_ && settings_.folds == 0
                    ? concat("; nothing is left to train; ", how_to_train_longer("--early-stop 0"))
                    : ""}));
    return true;
  }

  // False where somebody wanted to stop before all was evaluated: nothing has happened then, and
  // whoever resumes evaluates.
  bool evaluate_now(bool last = false) {
    const bool keep = last && data_.held_out->size() <= kMostSampleResults;
    Evaluation found = evaluate(judged_,
                                *task_,
                                *data_.held_out,
                                {.batch = settings_.eval_batch,
                                 .keep_samples = keep,
                                 .stop = [this] { return stop_ && stop_(); }},
                                *world_);
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

  // --- the end

  void finish() {
    if (data_.held_out && result_.status != TrainResult::Status::kInterrupted &&
        !evaluate_now(/*last=*/true)) {
      result_.status = TrainResult::Status::kInterrupted;
    }
    // Before the weights: where those cannot be written, the run can still be resumed from here.
    const std::exception_ptr unsaved = save_last();
    if (settings_.save_weights) {
      keep_weights("model");
      if (settings_.ema_decay > 0) {
        detail::with_averages(
            runner_.engine(), *judged_.module, [this] { keep_weights("average"); });
      }
    }
    if (unsaved) {
      std::rethrow_exception(unsaved);
    }
    summarise();
  }

  // Why the last checkpoint could not be written, which all ranks know then: the weights, which are
  // smaller, may still find room.
  std::exception_ptr save_last() {
    if (!checkpoints_.saves()) {
      return nullptr;
    }
    try {
      save();
      const auto waits = Time::now();
      checkpoints_.finish();
      progress_.save_seconds += std::chrono::duration<double>(Time::now() - waits).count();
    } catch (const CheckpointError&) {
      return std::current_exception();
    }
    return nullptr;
  }

  void summarise() {
    std::vector<double> shares = {run_processor_seconds() / run_seconds()};
    world_->all_reduce(shares, ReduceOp::kAverage).wait();
    progress_.summarise(result_);
    result_.processor_share = shares[0];
    result_.steps = runner_.next_step();
    result_.micro_batch = runner_.micro_batch();
    result_.counts_tokens = task_->predicts_tokens();
    if (result_.counts_tokens) {
      result_.per_second *= static_cast<double>(tokens_in(1));
    }
    result_.memory = runner_.engine().memory_report();
    result_.built_in_parts = judged_.in_parts;
    result_.stragglers = runner_.stragglers();
    result_.machines = world_->machines();
    result_.sum_group = world_->sum_group();
  }

  const TrainSettings& settings_;
  const Parts& data_;
  std::shared_ptr<World> world_;
  TrainObserver* observer_;
  std::function<bool()> stop_;
  RunCheckpoints& checkpoints_;
  std::shared_ptr<const Task> task_;
  StepRunner runner_;
  Trainable judged_;  // scores in the precision of the run
  ReduceOnPlateau plateau_;
  std::optional<Goal> goal_ = goal_of(settings_);
  Time::time_point begin_ = Time::now();
  double processor_begin_ = processor_seconds();
  std::int64_t first_step_ = 0;  // that was taken before this part of the run
  double last_record_seconds_ = 0;
  TrainProgress progress_;  // what is in `runner_` and `plateau_`, only when it is saved
  TrainResult result_;
};

}  // namespace

TrainResult train(const TrainSettings& settings,
                  const Trainable& model,
                  const Parts& data,
                  const std::shared_ptr<World>& world,
                  TrainObserver* observer,
                  const std::function<bool()>& stop,
                  const TrainCheckpoints& checkpoints) {
  TRIREME_CHECK(model.module && model.scores && data.train, "train: expected a model and data");
  detail::check_micro_batch(settings);
  const bool looks_at_data = world->size() > 1 || !checkpoints.folder.empty();
  const std::int64_t fingerprint =
      looks_at_data ? detail::fingerprint_of_all_ranks(data, *world) : 0;
  detail::check_batch(settings, *data.train);
  const auto say = [observer](const std::string& text) {
    if (observer != nullptr) {
      observer->message(text);
    }
  };
  TrainSettings here = settings;
  here.ranks = world->size();  // whoever has started them
  if (observer != nullptr) {
    const std::string warning =
        slow_precision_warning(here.precision, slowdown_of_precision(here.precision));
    if (!warning.empty()) {
      say(warning);
    }
  }
  if (here.save_weights || here.save_initial) {
    check_weights(*model.module,
                  "save_weights: the model cannot be written to a file (train it with "
                  "save_weights and save_initial off, or change it)");
  }
  RunCheckpoints kept(here, checkpoints, *model.module, world, observer, say);
  return Training(here, model, data, fingerprint, world, observer, stop, kept).run();
}

}  // namespace trireme
