#include "train/training.h"

#include <algorithm>

#include <sys/resource.h>

#include <ATen/Parallel.h>

#include "train/averaged_weights.h"
#include "train/note_names.h"
#include "train/rank_changes.h"
#include "train/unreached.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/seconds_since.h"

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

// As many as there are of both.
template <class T>
void add_to(std::vector<T>& sums, const std::vector<T>& more) {
  for (std::size_t i = 0; i < std::min(sums.size(), more.size()); ++i) {
    sums[i] += more[i];
  }
}

// As it is given; without a task of its own it learns what samples of this shape are for.
Trainable with_task(Trainable model,
                    const SampleShape& shape,
                    const std::vector<double>& loss_weights) {
  if (model.task || !loss_weights.empty()) {
    model.loss = nullptr;
  }
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
  if (const std::string line = unevaluated(settings_); !data_.held_out && !line.empty()) {
    say(line);
  }
  if (const at::Device device = device_of(*judged_.module); leads() && device.is_cuda()) {
    gpu_watch_.emplace(
        device, world_->local_size(), [this](const std::string& text) { say(text); });
  }
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
    if (has_stalled() || has_replayed()) {
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
    save_if_due();
    keep_in_memory();
  }
  finish();
  ChangesOfRun::end();
  return result_;
}

double Training::run_seconds() const {
  return progress_.run_seconds + seconds_since(begin_);
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

// Of all parts of the run: engines count since the first was made.
CompressionUse Training::compression_use() const {
  CompressionUse use = runner_.compression();
  use.sent_bytes += progress_.compression.sent_bytes;
  use.exact_bytes += progress_.compression.exact_bytes;
  use.seconds += progress_.compression.seconds;
  use.weights.received_bytes += progress_.compression.weights.received_bytes;
  use.weights.exact_bytes += progress_.compression.weights.exact_bytes;
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

// Of all parts of the run, too. Collective, where ranks are stale.
std::optional<StaleUse> Training::stale_use() {
  std::optional<StaleUse> use = runner_.stale_use();
  if (use) {
    add_to(use->staleness, progress_.stale.staleness);
    add_to(use->held_up, progress_.stale.held_up);
  }
  return use;
}

TrainProgress Training::progress_now() {
  TrainProgress now = progress_;
  now.compression = compression_use();
  now.averaging = averaging_use();
  now.stale = stale_use().value_or(StaleUse{});
  now.step = runner_.next_step();
  now.position = runner_.position();
  now.micro_batch = runner_.micro_batch();
  now.plateau = plateau_.state();
  now.run_seconds = run_seconds();
  now.processor_seconds = run_processor_seconds();
  changes_.write_to(now);
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
  vault_->save(
      runner_.next_step(),
      state.view,
      {{kEngineNote, runner_.resumable().progress()}, {kProgressNote, progress_now().to_json()}});
  progress_.save_seconds += seconds_since(begin);
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
    if (may_save()) {
      save();
    } else {
      say(
          concat("no checkpoint after step {}, from which the run in {} did not go on: a replay is "
                 "resumed from one before it",
                 {runner_.next_step(), settings_.replay}));
    }
    const auto waits = Time::now();
    checkpoints_.finish();
    progress_.save_seconds += seconds_since(waits);
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
  changes_.write_to(progress_);
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
  result_.pruned = runner_.engine().pruned();
  result_.offload = runner_.engine().offload();
  result_.averaging = averaging_use();
  result_.replicas = runner_.replicas();
  result_.phases = runner_.schedule_of_phases();
  result_.stale = stale_use();
  result_.built_in_parts = judged_.in_parts;
  result_.stragglers = runner_.stragglers();
  result_.machines = world_->machines();
  result_.sum_group = world_->sum_group();
}

}  // namespace trireme::detail
