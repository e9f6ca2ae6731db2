#include "trireme/train/trainer.h"

#include <chrono>
#include <cmath>

#include <sys/resource.h>

#include "train/step_runner.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

using detail::concat;
using detail::StepRunner;
using Time = std::chrono::steady_clock;

// Chunks in which the statistics of features are computed, whatever the number of ranks.
constexpr std::int64_t kStatisticsChunks = 64;
// Per-sample results of a larger set would fill memory, not a table.
constexpr std::int64_t kMostSampleResults = 1'000'000;
// The first steps warm up caches and allocators: throughput is counted after them.
constexpr std::int64_t kWarmUpSteps = 20;

bool is_better(const std::string& metric, double a, double b) {
  if (std::isnan(b)) {
    return !std::isnan(a);  // any number is better than none
  }
  return metric == "loss" || metric == "perplexity" ? a < b : a > b;
}

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
           const std::shared_ptr<World>& world,
           TrainObserver* observer,
           const std::function<bool()>& stop)
      : settings_(settings),
        data_(data),
        world_(world),
        observer_(observer),
        stop_(stop),
        task_(data.train->shape(), settings.loss_weights),
        runner_(settings,
                model,
                task_,
                data.train,
                world,
                [this](const std::string& text) { say(text); }),
        judged_{model.module, [this](const TensorBatch& batch) { return runner_.scores(batch); }},
        plateau_({.gamma = settings.gamma,
                  .patience = static_cast<int>(settings.plateau_patience),
                  .larger_is_better = settings.best != "loss"}),
        base_rate_(runner_.engine().learning_rate() /
                   runner_.engine().options().schedule.factor(0)) {
    TRIREME_CHECK(settings.best != "accuracy" || task_.shape().classes > 0,
                  "best: numbers are predicted, which have no accuracy: expected loss");
    TRIREME_CHECK(
        settings.best != "f1" || (task_.classifies() && task_.shape().classes <= kMostClasses),
        "best: f1 is computed for up to ",
        kMostClasses,
        " classes of samples, which this task has not: expected loss or accuracy");
    TRIREME_CHECK(settings.early_stop == 0 || data.held_out,
                  "early_stop: there is nothing to evaluate on: set eval_data or eval_fraction");
    TRIREME_CHECK(settings.schedule != "plateau" || data.held_out,
                  "schedule: plateau follows evaluations, and there is nothing to evaluate on: set "
                  "eval_data or eval_fraction");
  }

  TrainResult run() {
    judged_.module->train();
    if (settings_.save_initial) {
      keep_weights("initial");
    }
    while (runner_.next_step() < runner_.steps()) {
      const double epoch = runner_.epoch();
      if (settings_.record_samples && leads()) {
        observer_->samples(runner_.samples_of_next_step());
      }
      const bool histograms = settings_.histogram_every > 0 &&
                              (runner_.next_step() + 1) % settings_.histogram_every == 0;
      const StepRunner::Outcome outcome = runner_.run(
          stop_ && stop_(), histograms ? [this] { show_gradients(); } : std::function<void()>());
      count(outcome);
      report(outcome);
      if (histograms) {
        show_parameters();
      }
      if (outcome.stop) {
        result_.status = TrainResult::Status::kInterrupted;
        break;
      }
      if (is_due(epoch) && !evaluate_now()) {
        result_.status = TrainResult::Status::kStoppedEarly;
        break;
      }
    }
    finish();
    return result_;
  }

 private:
  bool leads() const { return observer_ != nullptr; }
  double run_seconds() const { return std::chrono::duration<double>(Time::now() - begin_).count(); }
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

  // --- after a step

  void count(const StepRunner::Outcome& outcome) {
    result_.seconds += outcome.seconds;
    result_.loss = outcome.loss;
    comm_seconds_ += outcome.comm_seconds;
    data_seconds_ += outcome.data_seconds;
    result_.tensor_bytes = std::max(result_.tensor_bytes, outcome.tensor_bytes);
    all_samples_ += outcome.samples;
    if (runner_.next_step() > std::min(kWarmUpSteps, runner_.steps() / 10)) {
      timed_seconds_ += outcome.seconds;
      timed_samples_ += outcome.samples;
    }
  }

  std::int64_t tokens_in(std::int64_t samples) const {
    return task_.predicts_tokens() ? samples * (task_.shape().length - 1) : 0;
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
    report.record_seconds = record_seconds_;
    report.rank_bytes = outcome.rank_bytes;
    report.skipped = outcome.skipped;
    report.seconds_left = result_.seconds / static_cast<double>(report.step) *
                          static_cast<double>(report.steps - report.step);
    observer_->step(report);
    record_seconds_ = std::chrono::duration<double>(Time::now() - begin).count();
    all_record_seconds_ += record_seconds_;
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

  bool is_due(double epoch_before) const {
    if (!data_.held_out || runner_.next_step() == runner_.steps()) {
      return false;  // the last one is finish()'s
    }
    return settings_.eval_every > 0 ? runner_.next_step() % settings_.eval_every == 0
                                    : std::floor(runner_.epoch()) > std::floor(epoch_before);
  }

  // False when it is time to stop.
  bool evaluate_now(bool last = false) {
    const bool keep = last && data_.held_out->size() <= kMostSampleResults;
    Evaluation evaluation = evaluate(judged_,
                                     task_,
                                     *data_.held_out,
                                     {.batch = settings_.eval_batch, .keep_samples = keep},
                                     *world_);
    judged_.module->train();
    if (evaluated_step_ == runner_.next_step()) {
      // The same weights again, for each sample's result: nothing is to be decided anew.
      result_.evaluation = std::move(evaluation);
      return true;
    }
    evaluated_step_ = runner_.next_step();
    const double judged = evaluation.metrics.at(settings_.best);
    const bool better =
        result_.best.empty() || is_better(settings_.best, judged, result_.best.at(settings_.best));
    if (better) {
      result_.best = evaluation.metrics;
      result_.best_step = runner_.next_step();
      without_improvement_ = 0;
    } else {
      ++without_improvement_;
    }
    const auto aimed = goal_ ? evaluation.metrics.find(goal_->metric) : evaluation.metrics.end();
    if (result_.goal_step == 0 && aimed != evaluation.metrics.end() &&
        !is_better(goal_->metric, goal_->value, aimed->second)) {
      result_.goal_step = runner_.next_step();
      result_.goal_seconds = run_seconds();
    }
    if (settings_.schedule == "plateau") {
      plateau_.observe(judged);
      runner_.engine().set_learning_rate(base_rate_ * plateau_.factor());
    }
    if (leads()) {
      observer_->evaluated(runner_.next_step(), evaluation, better);
    }
    if (better && settings_.save_weights) {
      keep_weights("best");
    }
    result_.evaluation = std::move(evaluation);
    if (!last && settings_.early_stop > 0 && without_improvement_ >= settings_.early_stop) {
      say(concat("stopping: ",
                 settings_.best,
                 " has not improved in ",
                 without_improvement_,
                 " evaluations; it was best in step ",
                 result_.best_step));
      return false;
    }
    return true;
  }

  void finish() {
    if (data_.held_out && result_.status != TrainResult::Status::kInterrupted) {
      evaluate_now(/*last=*/true);
    }
    if (settings_.save_weights) {
      keep_weights("model");
      if (settings_.ema_decay > 0) {
        keep_average();
      }
    }
    std::vector<double> shares = {(processor_seconds() - processor_begin_) / run_seconds()};
    world_->all_reduce(shares, ReduceOp::kAverage).wait();
    result_.processor_share = shares[0];
    result_.steps = runner_.next_step();
    result_.micro_batch = runner_.micro_batch();
    result_.counts_tokens = task_.predicts_tokens();
    const bool timed = timed_seconds_ > 0;
    const double seconds = timed ? timed_seconds_ : result_.seconds;
    if (seconds > 0) {
      const std::int64_t samples = timed ? timed_samples_ : all_samples_;
      const std::int64_t units = result_.counts_tokens ? tokens_in(samples) : samples;
      result_.per_second = static_cast<double>(units) / seconds;
    }
    if (result_.seconds > 0) {
      result_.communication_share = comm_seconds_ / result_.seconds;
      result_.data_share = data_seconds_ / result_.seconds;
      result_.record_share = all_record_seconds_ / (result_.seconds + all_record_seconds_);
    }
    result_.memory = runner_.engine().memory_report();
    result_.stragglers = runner_.stragglers();
  }

  // The moving average in the place of the weights, for as long as they are written.
  void keep_average() {
    std::vector<std::pair<at::Tensor, at::Tensor>> averages;
    for (const auto& item : judged_.module->named_parameters()) {
      if (item.value().requires_grad()) {
        averages.emplace_back(item.value(), runner_.engine().average(item.key()));
      }
    }
    const at::NoGradGuard no_grad;
    auto scope = runner_.engine().gathered();
    std::vector<at::Tensor> before;
    for (auto& [parameter, average] : averages) {
      before.push_back(parameter.detach().clone());
      parameter.copy_(average);
    }
    keep_weights("average");
    for (std::size_t i = averages.size(); i-- > 0;) {  // backwards: a tied one comes twice
      averages[i].first.copy_(before[i]);
    }
    scope.close();
  }

  const TrainSettings& settings_;
  const Parts& data_;
  std::shared_ptr<World> world_;
  TrainObserver* observer_;
  std::function<bool()> stop_;
  Task task_;
  StepRunner runner_;
  Trainable judged_;  // scores in the precision of the run
  ReduceOnPlateau plateau_;
  double base_rate_;
  std::optional<Goal> goal_ = goal_of(settings_);
  Time::time_point begin_ = Time::now();
  double processor_begin_ = processor_seconds();
  TrainResult result_;
  std::int64_t without_improvement_ = 0;
  std::int64_t evaluated_step_ = 0;  // the last one after which there was an evaluation
  double comm_seconds_ = 0;
  double data_seconds_ = 0;
  double record_seconds_ = 0;
  double all_record_seconds_ = 0;
  double timed_seconds_ = 0;
  std::int64_t timed_samples_ = 0;
  std::int64_t all_samples_ = 0;
};

}  // namespace

TrainResult train(const TrainSettings& settings,
                  const Trainable& model,
                  const Parts& data,
                  const std::shared_ptr<World>& world,
                  TrainObserver* observer,
                  const std::function<bool()>& stop) {
  TRIREME_CHECK(model.module && model.scores && data.train, "train: expected a model and data");
  return Training(settings, model, data, world, observer, stop).run();
}

Parts prepared(const TrainSettings& settings, const Parts& data, Communicator& ranks) {
  if (settings.normalise != "standard") {
    return data;
  }
  TRIREME_CHECK(data.train->shape().kind == SampleKind::kDense,
                "normalise: only dense numbers have a mean, found another kind of data");
  // Every chunk is computed by one rank; the others' entries are 0, so the sums are exact.
  std::vector<FeatureSums> sums(static_cast<std::size_t>(kStatisticsChunks));
  std::vector<double> flat;
  std::size_t features = 0;
  for (std::int64_t chunk = 0; chunk < kStatisticsChunks; ++chunk) {
    if (chunk % ranks.size() == ranks.rank()) {
      sums[static_cast<std::size_t>(chunk)] = feature_sums(*data.train, chunk, kStatisticsChunks);
      features = sums[static_cast<std::size_t>(chunk)].sum.size();
    }
  }
  std::vector<std::int64_t> agreed = {static_cast<std::int64_t>(features)};
  ranks.all_reduce(agreed, ReduceOp::kMax).wait();
  features = static_cast<std::size_t>(agreed[0]);
  for (FeatureSums& part : sums) {
    for (std::vector<double>* values : {&part.count, &part.sum, &part.square_sum}) {
      values->resize(features, 0);
      flat.insert(flat.end(), values->begin(), values->end());
    }
  }
  ranks.all_reduce(flat).wait();
  auto at = flat.begin();
  for (FeatureSums& part : sums) {
    for (std::vector<double>* values : {&part.count, &part.sum, &part.square_sum}) {
      std::copy_n(at, features, values->begin());
      at += static_cast<std::ptrdiff_t>(features);
    }
  }
  const FeatureStatistics statistics = statistics_of(*data.train, sums);
  return {standardised(data.train, statistics),
          data.held_out ? standardised(data.held_out, statistics) : nullptr};
}

std::vector<TrainResult> cross_validate(
    const TrainSettings& settings,
    const std::shared_ptr<const Dataset>& all,
    const std::function<std::shared_ptr<TrainObserver>(int fold, const Trainable& model)>&
        observer_of,
    const std::shared_ptr<World>& world,
    const std::function<bool()>& stop) {
  std::vector<TrainResult> results;
  const auto folds = static_cast<int>(settings.folds);
  for (int fold = 0; fold < folds; ++fold) {
    const Parts parts = prepared(
        settings, fold_of(all, fold, folds, mix(settings.seed, 0x666f6c6473u)), *world);  // "folds"
    const Trainable model = make_model(settings, parts.train->shape());
    const std::shared_ptr<TrainObserver> observer = observer_of(fold, model);
    results.push_back(train(settings, model, parts, world, observer.get(), stop));
    if (results.back().status == TrainResult::Status::kInterrupted) {
      break;
    }
  }
  return results;
}

}  // namespace trireme
