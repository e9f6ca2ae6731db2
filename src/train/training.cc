#include "train/training.h"

#include <algorithm>

#include <sys/resource.h>

#include <ATen/Parallel.h>

#include "train/averaged_weights.h"
#include "train/note_names.h"
#include "train/rank_changes.h"
#include "train/starting_weights.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using Time = std::chrono::steady_clock;

// Processor time of this process so far.
double processor_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// As it is given; without a task of its own it learns what samples of this shape are for.
Trainable with_task(Trainable model,
                    const SampleShape& shape,
                    const std::vector<double>& loss_weights) {
  if (!model.task) {
    model.task = std::make_shared<const Task>(shape, loss_weights);
  }
  return model;
}

// The metrics of its evaluation that a goal can be of.
std::vector<std::string> possible_goals(const Task& task) {
  if (task.predicts_tokens()) {
    return {"loss", "perplexity", "accuracy"};
  }
  if (!task.classifies()) {
    return {"loss", "rmse", "mae"};
  }
  return task.shape().classes <= kMostClasses ? std::vector<std::string>{"loss", "accuracy", "f1"}
                                              : std::vector<std::string>{"loss", "accuracy"};
}

}  // namespace

Training::Training(const Subject& subject)
    : settings_(subject.settings),
      data_(subject.data),
      world_(subject.world),
      observer_(subject.observer),
      stop_(subject.stop),
      checkpoints_(subject.checkpoints),
      vault_(subject.vault),
      judged_(with_task(subject.model, data_.train->shape(), settings_.loss_weights)),
      runner_(
          settings_, judged_, data_.train, world_, [this](const std::string& text) { say(text); }),
      // A gamma of another schedule may be one that a plateau has no use for.
      plateau_({.gamma = settings_.schedule == ScheduleKind::kPlateau ? settings_.gamma
                                                                      : PlateauOptions{}.gamma,
                .patience = static_cast<int>(settings_.plateau_patience),
                .larger_is_better = settings_.best != "loss"}),
      processor_begin_(processor_seconds()) {
  if (vault_ != nullptr) {
    // Two, and two more while the ranks of the next world make theirs. Counted from the beginning:
    // a loss must not make micro-batches smaller, which would change bits.
    runner_.leave_room(vault_->newest() ? 2 : 4);
  }
  judged_.scores = [this](const TensorBatch& batch) { return runner_.scores(batch); };
  TRIREME_CHECK(settings_.loss_weights.empty() || judged_.task->weighs(),
                "loss_weights: the loss of the model {} takes no weights: leave them out",
                {settings_.model});
  TRIREME_CHECK(settings_.best != "accuracy" || judged_.task->shape().classes > 0,
                "best: this task predicts numbers, which have no accuracy: expected loss");
  TRIREME_CHECK(settings_.best != "f1" ||
                    (judged_.task->classifies() && judged_.task->shape().classes <= kMostClasses),
                "best: f1 is computed for up to ",
                kMostClasses,
                " classes of samples, which this task does not have: expected loss",
                judged_.task->shape().classes > 0 ? " or accuracy" : "");
  const std::vector<std::string> goals = possible_goals(*judged_.task);
  TRIREME_CHECK(!goal_ || std::count(goals.begin(), goals.end(), goal_->metric) > 0,
                "goal: this task has no {}: expected {}",
                {goal_->metric, detail::enumerated(goals, " or ")});
  TRIREME_CHECK(settings_.early_stop == 0 || data_.held_out,
                "early_stop: there is nothing to evaluate on: give --eval-data FILE, or an "
                "--eval-fraction above 0");
  TRIREME_CHECK(settings_.schedule != ScheduleKind::kPlateau || data_.held_out,
                "schedule: plateau follows evaluations, but there is nothing to evaluate on: "
                "give --eval-data FILE, or an --eval-fraction above 0");
  progress_.training_samples = data_.train->size();
  progress_.held_out_samples = data_.held_out ? data_.held_out->size() : 0;
  progress_.threads = at::get_num_threads();
  progress_.sum_group = world_->sum_group();
  progress_.data_fingerprint = subject.data_fingerprint;
}

TrainResult Training::run() {
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
    keep_in_memory();
  }
  finish();
  remember_step(0);
  return result_;
}

double Training::run_seconds() const {
  return progress_.run_seconds + std::chrono::duration<double>(Time::now() - begin_).count();
}

double Training::run_processor_seconds() const {
  return progress_.processor_seconds + processor_seconds() - processor_begin_;
}

void Training::say(const std::string& text) {
  if (leads()) {
    observer_->message(text);
  }
}

void Training::keep_weights(const std::string& which) {
  runner_.with_mean([&] {
    if (leads()) {
      observer_->weights(which, *judged_.module);
    }
    world_->barrier().wait();
  });
}

void Training::begin() {
  if (begin_with_memory()) {
    return;
  }
  if (!checkpoints_.resumed_step()) {
    if (!settings_.weights_from.empty()) {
      begin_with_weights(
          settings_, *judged_.module, runner_.resumable(), [this](const std::string& text) {
            say(text);
          });
    }
    runner_.begin();
    progress_.rank_changes = changes_up_to(*world_, {});
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
  const RunCheckpoints::Loaded loaded = checkpoints_.load(runner_.resumable());
  go_on(loaded.progress);
  checkpoints_.take_up();
  begin_after(loaded.path, loaded.ranks);
}

// With what ranks that were lost, or have lost others, had kept: no step is computed again but the
// one in which it happened.
bool Training::begin_with_memory() {
  if (vault_ == nullptr || !vault_->newest() ||
      vault_->newest()->step < checkpoints_.resumed_step().value_or(0)) {
    return false;
  }
  const Vault::Version kept = *vault_->newest();
  runner_.resumable().restore([&](const StateView& into) { vault_->load(into); },
                              kept.notes.at(kEngineNote));
  go_on(TrainProgress::parse(kept.notes.at(kProgressNote), "the memory that the launcher keeps"));
  const EngineState state = runner_.state_to_keep();
  try {
    vault_->keep_loaded(state.view);
  } catch (const CommError& error) {
    remember_end(error);
    throw;
  }
  begin_after("the state in memory", kept.ranks);
  return true;
}

void Training::begin_after(const std::string& what, int ranks) {
  progress_.rank_changes = changes_up_to(
      *world_, {.changes = progress_.rank_changes, .ranks = ranks, .step = progress_.step});
  if (leads()) {
    observer_->begins({.step = progress_.step,
                       .evaluated = progress_.evaluated_step == progress_.step,
                       .best_step = progress_.best_step,
                       .checkpoint = what,
                       .ranks = ranks,
                       .same_job = launcher_keeps_memory() && world_->epoch() > 0,
                       .data = &data_});
  }
  say(concat("resuming after step {} with {}, saved by {}",
             {progress_.step, what, counted(ranks, "rank")}));
  // One that was interrupted has not waited for its evaluation.
  if (is_due() && progress_.evaluated_step != runner_.next_step()) {
    evaluate_now();  // interrupted: the first step notices it, too
  }
  say_what_is_left();
}

void Training::say_what_is_left() {
  if (runner_.next_step() < runner_.steps() || settings_.folds > 0) {
    return;
  }
  say(concat(
      runner_.steps() == 1 ? "the only step is" : concat("all ", runner_.steps(), " steps are"),
      " done: nothing is left to train; ",
      how_to_train_longer(settings_.steps > 0 ? "--steps N" : "--epochs N")));
}

std::string Training::how_to_train_longer(const std::string& flags) const {
  return concat(
      "to train longer: {}{} --allow-changes",
      {settings_.run.empty() ? "" : concat("trireme train --resume ", settings_.run, " "), flags});
}

void Training::go_on(const TrainProgress& saved) {
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
  first_seconds_ = progress_.seconds;
  plateau_.restore(progress_.plateau);
  runner_.engine().set_learning_rate(runner_.base_rate() * plateau_.factor());
  result_.evaluation.metrics = progress_.evaluation;
}

// Of all parts of the run: an engine counts since it was made.
CompressionUse Training::compression_use() const {
  CompressionUse use = runner_.engine().compression();
  use.sent_bytes += progress_.compression.sent_bytes;
  use.exact_bytes += progress_.compression.exact_bytes;
  use.seconds += progress_.compression.seconds;
  if (use.check.step == 0) {
    use.check = progress_.compression.check;
  }
  return use;
}

AveragingUse Training::averaging_use() const {
  AveragingUse use = runner_.averaging();
  use.sent_bytes += progress_.averaging.sent_bytes;
  use.seconds += progress_.averaging.seconds;
  return use;
}

TrainProgress Training::progress_now() const {
  TrainProgress now = progress_;
  now.compression = compression_use();
  now.averaging = averaging_use();
  now.step = runner_.next_step();
  now.position = runner_.position();
  now.micro_batch = runner_.micro_batch();
  now.plateau = plateau_.state();
  now.run_seconds = run_seconds();
  now.processor_seconds = run_processor_seconds();
  return now;
}

void Training::save() {
  progress_.save_seconds += checkpoints_.save(runner_.resumable(), progress_now());
}

void Training::keep_in_memory() {
  if (vault_ == nullptr) {
    return;
  }
  const auto begin = Time::now();
  if (leads()) {
    observer_->keeps();
  }
  const EngineState state = runner_.state_to_keep();
  try {
    vault_->save(
        runner_.next_step(),
        state.view,
        {{kEngineNote, runner_.resumable().progress()}, {kProgressNote, progress_now().to_json()}});
  } catch (const CommError& error) {
    remember_end(error);
    throw;
  }
  progress_.save_seconds += std::chrono::duration<double>(Time::now() - begin).count();
}

void Training::finish() {
  if (data_.held_out && result_.status != TrainResult::Status::kInterrupted &&
      !evaluate_now(/*last=*/true)) {
    result_.status = TrainResult::Status::kInterrupted;
  }
  // Before the weights: where those cannot be written, the run can still be resumed from here.
  const std::exception_ptr unsaved = save_last();
  if (settings_.save_weights) {
    keep_weights("model");
    if (settings_.ema_decay > 0) {
      runner_.with_mean([this] {
        with_averages(runner_.engine(), *judged_.module, [this] {
          if (leads()) {
            observer_->weights("average", *judged_.module);
          }
          world_->barrier().wait();
        });
      });
    }
  }
  if (unsaved) {
    std::rethrow_exception(unsaved);
  }
  runner_.finish();
  summarise();
}

std::exception_ptr Training::save_last() {
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

void Training::summarise() {
  std::vector<double> shares = {run_processor_seconds() / run_seconds()};
  world_->all_reduce(shares, ReduceOp::kAverage).wait();
  // Also of what came after the last step: its evaluation needs what those before it did.
  std::vector<std::int64_t> most = {runner_.peak_tensor_bytes()};
  world_->all_reduce(most, ReduceOp::kMax).wait();
  progress_.tensor_bytes = std::max(progress_.tensor_bytes, most[0]);
  progress_.summarise(result_);
  result_.processor_share = shares[0];
  result_.steps = runner_.next_step();
  result_.micro_batch = runner_.micro_batch();
  result_.counts_tokens = judged_.task->predicts_tokens();
  if (result_.counts_tokens) {
    result_.per_second *= static_cast<double>(tokens_in(1));
  }
  result_.memory = runner_.memory_report();
  result_.compression = compression_use();
  result_.averaging = averaging_use();
  result_.replicas = runner_.replicas();
  result_.stale = runner_.stale_use();
  result_.built_in_parts = judged_.in_parts;
  result_.stragglers = runner_.stragglers();
  result_.machines = world_->machines();
  result_.sum_group = world_->sum_group();
}

}  // namespace trireme::detail
