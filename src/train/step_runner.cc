#include "train/step_runner.h"

#include <chrono>
#include <limits>

#include <ATen/Context.h>
#include <ATen/ops/stack.h>

#include "train/compression_choice.h"
#include "train/optimizer_choice.h"
#include "train/out_of_memory.h"
#include "train/sampling_choice.h"
#include "train/sync_choice.h"
#include "train/unreached.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/core/seconds_since.h"
#include "trireme/parallel/autocast.h"
#include "trireme/settings/settings_table.h"
#include "trireme/tensor/memory_limit.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

using Time = std::chrono::steady_clock;

void seed_generator(at::Device device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

// Each replica, or rank, computes as many.
void check_parts(std::int64_t micro_batches, int parts, const TrainSettings& settings) {
  const bool stale = trains_stale(settings);
  TRIREME_CHECK(micro_batches % parts == 0,
                "sync: expected a multiple of {} micro-batches in a step, as many as there are "
                "{}, found {}: change --batch, --micro-batch or {}",
                {parts,
                 stale ? "ranks that compute" : "replicas",
                 micro_batches,
                 stale ? "--servers" : "--sync-group"});
}

}  // namespace

StepRunner::StepRunner(const TrainSettings& settings,
                       const Trainable& model,
                       std::shared_ptr<const Dataset> data,
                       std::shared_ptr<World> world,
                       Say say)
    : settings_(settings),
      model_(model),
      device_(device_of(*model.module)),
      data_(std::move(data)),
      world_(std::move(world)),
      say_(std::move(say)),
      replicas_(replicas_of(settings, world_)),
      workers_(trains_stale(settings) ? world_->size() - static_cast<int>(settings.servers) : 0),
      batch_changes_(batch_changes(settings)),
      sampler_(data_,
               sampler_options(
                   settings, settings.batch / first_micro_batch(settings), model.task->shape())),
      micro_batch_(first_micro_batch(settings)),
      statistics_(*model.module,
                  has_phases(settings) ? world_
                  : replicas_          ? replicas_->mine()
                  : workers_ > 0       ? world_->split(world_->rank())
                                       : world_),
      balance_(settings, world_->size()),
      loader_(data_, sampler_, loader_options(settings)) {
  steps_ = count_steps();
  EngineOptions options = engine_options_of(settings_, steps_);
  options.compress = compressor_of(settings_, *world_, say_);
  options.compress_check = options.compress ? settings_.compress_check : 0;
  for (const BatchChange& change : batch_changes_) {
    check_parts(change.batch / micro_batch_, parts(), settings_);
  }
  check_parts(settings_.batch / micro_batch_, parts(), settings_);
  options.micro_batches = settings_.batch / micro_batch_;
  options.broadcast_buffers = !statistics_.covers_all_buffers();
  const std::unique_ptr<Optimizer> optimizer = optimizer_of(settings_, world_->size());
  base_rate_ = optimizer->learning_rate();
  if (workers_ > 0) {
    stale_ = std::make_unique<StaleEngineBase>(
        model_.module, *optimizer, stale_of(settings_, options), world_);
  } else if (has_phases(settings_)) {
    phases_ =
        std::make_unique<RunPhases>(settings_, model_.module, *optimizer, options, world_, say_);
    replicas_ = phases_->engine().replicas();
  } else {
    options.micro_batches /= replicas();
    own_engine_ = std::make_unique<EngineBase>(
        model_.module, *optimizer, options, replicas_ ? replicas_->mine() : world_);
  }
  take_engine();
  averaging_ = averaging_of(settings_, *engine_, replicas_);
  say_all({schedule_ends_early(settings_, steps_),
           zero_eps(settings_),
           single_samples(settings_),
           uneven_classes(sampler_)});
}

// A phase that begins has an engine of its own, among its own ranks.
void StepRunner::take_engine() {
  engine_ = stale_ ? &stale_->worker() : phases_ ? &phases_->engine().engine() : own_engine_.get();
  if (phases_) {
    statistics_ = RunningStatistics(*model_.module, are_apart() ? replicas_->mine() : world_);
    dealt_.clear();
  }
}

void StepRunner::say_all(const std::vector<std::string>& remarks) const {
  for (const std::string& remark : remarks) {
    if (!remark.empty()) {
      say_(remark);
    }
  }
}

void StepRunner::begin() {
  take_up_weights();
  say_all(unreached(settings_, {steps_, next_step_}, averaging_.get(), replicas()));
  if (settings_.micro_batch == "auto") {
    find_micro_batch();
  }
  say_who_is_idle(/*resumed=*/false);
}

void StepRunner::go_on(const TrainProgress& progress) {
  TRIREME_CHECK(progress.step <= steps_,
                "steps: expected at least the {} that the checkpoint has already taken, found {}",
                {progress.step, steps_});
  next_step_ = progress.step;
  position_ = progress.position;
  if (progress.micro_batch == 0) {
    begin();
    return;
  }
  take_up_weights();
  say_all(unreached(settings_, {steps_, next_step_}, averaging_.get(), replicas()));
  micro_batch_ = progress.micro_batch;
  TRIREME_CHECK(common_batch() % micro_batch_ == 0,
                "batch: the micro-batches of {} that the checkpoint was saved with do not divide "
                "batches of {}: set micro_batch",
                {micro_batch_, common_batch()});
  say_who_is_idle(/*resumed=*/true);
}

// What it took to load them is not what steps take.
void StepRunner::take_up_weights() {
  take_engine();
  if (phases_) {
    phases_->begin();
  }
  statistics_.buffers_changed();
  limit_memory();
}

void StepRunner::say_who_is_idle(bool resumed) const {
  const std::int64_t servers = trains_stale(settings_) ? settings_.servers : 0;
  say_all({idle_ranks(world_->size() - servers,
                      servers,
                      batch_at(next_step_),
                      micro_batch_,
                      common_batch(),
                      resumed)});
}

at::Tensor StepRunner::scores(const TensorBatch& batch) const {
  if (settings_.precision == TrainPrecision::kAutocast) {
    const Autocast scope;
    return model_.scores(batch);
  }
  if (batch.dense.defined() && settings_.precision != TrainPrecision::kFloat32) {
    TensorBatch rounded = batch;
    rounded.dense =
        batch.dense.to(settings_.precision == TrainPrecision::kFloat16 ? at::kHalf : at::kBFloat16);
    return model_.scores(rounded);
  }
  return model_.scores(batch);
}

at::Tensor StepRunner::loss(const TensorBatch& batch) const {
  const bool in_one = model_.loss && !device_.is_cpu();
  return in_one && settings_.precision != TrainPrecision::kAutocast
             ? model_.loss(batch)
             : model_.task->loss(scores(batch), batch, weight_);
}

void StepRunner::end_micro_batch() {
  if (!stale_) {
    engine_->step();
    return;
  }
  const auto begin = Time::now();
  stale_->step();
  stale_seconds_ += seconds_since(begin);
}

void StepRunner::compute_one(std::int64_t micro_batch, const Batch& batch) {
  TensorBatch tensors = on_device(as_tensors(batch, model_.task->shape()), device_);
  tensors.seed = mix(settings_.seed, next_step_, first_micro_batch_here() + micro_batch);
  seed_generator(at::kCPU, tensors.seed);
  if (!device_.is_cpu()) {
    seed_generator(device_, tensors.seed);
  }
  statistics_.begin();
  const at::Tensor loss = this->loss(tensors);
  statistics_.end(micro_batch);
  MemoryLimit::check();
  losses_.push_back(loss.detach().reshape({}));  // looked at after the step: a GPU need not wait
  engine_->backward(loss);
}

std::vector<double> StepRunner::loss_values() const {
  if (losses_.empty()) {
    return {};
  }
  const at::Tensor values = at::stack(losses_).to(at::kCPU, at::kDouble);
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

void StepRunner::compute(std::int64_t batch, const std::function<void()>& before_update) {
  deal(batch);
  if (model_.task->weighs()) {
    weight_ = mean_weight();
  }
  if (!requested_until_) {
    request_step(position_);
    requested_until_ = position_ + batch;
  }
  // The next step's batches are prepared while this one is computed.
  if (*requested_until_ == position_ + batch && next_step_ + 1 < steps_ &&
      batch_at(next_step_ + 1) == batch) {
    request_step(*requested_until_);
    requested_until_ = *requested_until_ + batch;
  }
  losses_.clear();
  const std::int64_t local = local_micro_batches();
  for (std::int64_t k = 0; k < local; ++k) {
    const Batch& data = loader_.next();
    std::string failure;
    try {
      compute_one(engine_->micro_batch(k), data);
    } catch (const std::exception& error) {
      failure = reason_of(error);
      if (!ran_out_of_memory(error)) {
        throw;
      }
    }
    if (!failure.empty()) {  // outside of the handler, which keeps what the exception holds alive
      engine_->give_up(failure);
    }
    if (before_update && k + 1 == local) {
      before_update();
    }
    end_micro_batch();
  }
  if (local == 0 && computes()) {
    if (before_update) {
      before_update();
    }
    engine_->step();
  }
}

StepRunner::Outcome StepRunner::run(const Notice& notice,
                                    const std::function<void()>& before_update) {
  MemoryLimit::check();  // what was taken between steps is not a micro-batch's fault
  if (stale_) {
    statistics_.buffers_changed();  // by a checkpoint, after which all ranks have the same
  }
  const std::int64_t batch = batch_at(next_step_);
  Outcome mine;
  mine.learning_rate = engine_->learning_rate();
  const std::int64_t skipped = engine_->skipped_steps();
  const auto begin = Time::now();
  const double waited = loader_.waited_seconds();
  const double communicated = communication_seconds();
  const std::int64_t sent = network_bytes();
  for (;;) {
    try {
      compute(batch, before_update);
      break;
    } catch (const StepGivenUp& reason) {
      statistics_.forget_step();
      if (replicas_ || stale_) {
        throw MemoryError(concat(
            "{}; {} (sync = {}) have micro-batches of one size: give a smaller --micro-batch",
            {reason.what(), stale_ ? "ranks" : "replicas", value_text("sync", settings_)}));
      }
      loader_.clear();
      requested_until_.reset();
      make_smaller(reason);
      forget_peak();  // what steps that are taken need, not what was tried in vain
    } catch (...) {
      statistics_.forget_step();
      throw;
    }
  }
  if (computes()) {
    statistics_.finish_step(engine_->micro_batches());
  }
  const std::int64_t averagings = averaging().averagings;
  if (averaging_) {
    averaging_->step();
  } else if (phases_) {
    phases_->engine().end_step();
  }
  const bool averaged = averaging().averagings > averagings;
  if (averaged) {
    statistics_.buffers_changed();
  }
  mine.seconds = seconds_since(begin);
  mine.data_seconds = loader_.waited_seconds() - waited;
  mine.comm_seconds = communication_seconds() - communicated;
  mine.skipped = engine_->skipped_steps() > skipped;
  mine.gradient_norm =
      mine.skipped ? std::numeric_limits<double>::quiet_NaN() : engine_->gradient_norm();
  mine.tensor_bytes = peak_tensor_bytes();
  mine.rank_bytes = engine_->memory().total() + mine.tensor_bytes;
  mine.samples = batch;
  mine.network_bytes = network_bytes() - sent;
  Outcome all = exchange(notice, mine);
  if (phases_) {
    all.averaged_every = phases_->averaged_every();
    all.phase_news = phases_->end_step({.seconds = all.seconds,
                                        .exchange_seconds = all.exchange_seconds,
                                        .network_bytes = all.network_bytes,
                                        .averaged = averaged});
    if (!all.phase_news.empty()) {
      take_engine();
    }
  }
  position_ += batch;
  ++next_step_;
  return all;
}

double StepRunner::communication_seconds() const {
  const double world = world_->use().seconds + stale_seconds_;
  return replicas_ ? world + replicas_->mine()->use().seconds + replicas_->across().use().seconds
                   : world;
}

// Of this rank, to other machines.
std::int64_t StepRunner::network_bytes() const {
  const std::int64_t world = world_->use().network_bytes;
  return replicas_ ? world + replicas_->mine()->use().network_bytes +
                         replicas_->across().use().network_bytes
                   : world;
}

Resumable& StepRunner::resumable() const {
  return phases_      ? static_cast<Resumable&>(phases_->engine())
         : averaging_ ? static_cast<Resumable&>(*averaging_)
         : stale_     ? static_cast<Resumable&>(*stale_)
                      : *engine_;
}

void StepRunner::finish() {
  for (; !told_.empty(); told_.pop_front()) {
    told_.front()->work.wait();
  }
  if (stale_) {
    stale_->finish();
  }
}

void StepRunner::with_mean(const std::function<void()>& body) {
  if (stale_) {
    stale_->with_newest(body);
  } else if (phases_) {
    phases_->engine().with_mean(body);
  } else if (averaging_) {
    averaging_->with_mean(body);
  } else {
    body();
  }
}

}  // namespace trireme::detail
