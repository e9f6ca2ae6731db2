#include "parallel/engine_core.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <torch/nn/modules/batchnorm.h>

#include "parallel/backward_mark.h"
#include "parallel/broadcast.h"
#include "parallel/half_autocast.h"
#include "parallel/operator_watch.h"
#include "parallel/same_on_all_ranks.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/parallel/sync_batch_norm.h"
#include "trireme/shard/memory_formula.h"
#include "trireme/tensor/memory_limit.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

// Weights and biases of batch norms: LibTorch wants them in the precision of the statistics, which
// stay float32.
std::set<const at::TensorImpl*> batch_norm_parameters(torch::nn::Module& model) {
  std::set<const at::TensorImpl*> found;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const bool norm = module->as<torch::nn::BatchNorm1d>() != nullptr ||
                      module->as<torch::nn::BatchNorm2d>() != nullptr ||
                      module->as<torch::nn::BatchNorm3d>() != nullptr ||
                      module->as<SyncBatchNormImpl>() != nullptr;
    if (norm) {
      for (const at::Tensor& parameter : module->parameters(/*recurse=*/false)) {
        found.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  return found;
}

template <class Values, class Text>
std::string listed(const Values& values, const Text& text) {
  std::string all;
  for (const auto& value : values) {
    all += concat(all.empty() ? "" : ", ", text(value));
  }
  return all.empty() ? "none" : all;
}

std::vector<const at::TensorImpl*> registered_in(const torch::nn::Module& model) {
  std::vector<const at::TensorImpl*> found;
  for (const at::Tensor& parameter : model.parameters(/*recurse=*/true)) {
    found.push_back(parameter.unsafeGetTensorImpl());
  }
  return found;
}

// All that the result depends on and all ranks must have alike, a line each. A schedule is a
// function: the ranks compare what it gives, in every step.
std::vector<std::string> settings_of(const EngineOptions& o, const Optimizer& optimizer) {
  const int threads = at::get_num_threads();
  const LossScalerOptions& scale = o.loss_scale;
  return {
      concat(threads, threads == 1 ? " thread" : " threads"),
      concat("the optimizer ", optimizer.name(), ", ", optimizer.settings()),
      concat("zero ", o.zero),
      concat("micro_batches ", o.micro_batches, ", accumulate ", o.accumulate),
      concat(
          "sum_order ", static_cast<int>(o.sum_order), ", divisor ", static_cast<int>(o.divisor)),
      concat("precision ", static_cast<int>(o.precision), ", scale_loss ", o.scale_loss),
      concat("loss_scale.initial ",
             exact_text(scale.initial),
             ", growth ",
             exact_text(scale.growth),
             ", backoff ",
             exact_text(scale.backoff),
             ", growth_interval ",
             scale.growth_interval,
             ", least ",
             exact_text(scale.least),
             ", most ",
             exact_text(scale.most)),
      concat("clip_norm ", exact_text(o.clip_norm), ", clip_value ", exact_text(o.clip_value)),
      concat("ema_decay ", exact_text(o.ema_decay)),
      concat("check_gradients ", o.check_gradients),
      concat("units ", listed(o.units, [](const std::string& name) { return name; })),
      concat("unit_bytes ", o.unit_bytes, ", bucket_bytes ", o.bucket_bytes),
      concat("bucket_count ", o.bucket_count),
      concat("split ", static_cast<int>(o.split)),
      concat("shares ", listed(o.shares, exact_text)),
      concat("shard_group ", static_cast<int>(o.shard_group)),
      concat("broadcast_buffers ", o.broadcast_buffers),
      concat(o.gradient_hook ? "a" : "no", " gradient hook"),
  };
}

}  // namespace

EngineCore::EngineCore(std::shared_ptr<torch::nn::Module> model,
                       const Optimizer& optimizer,
                       const EngineOptions& options,
                       std::shared_ptr<Communicator> ranks)
    : model_(std::move(model)),
      options_(options),
      ranks_(std::move(ranks)),
      base_rate_(optimizer.learning_rate()) {
  TRIREME_CHECK(ranks_, "Engine: the world is a null pointer: pass what trireme::init() returned");
  all_or_none(*ranks_, [&] {
    TRIREME_CHECK(model_, "Engine: the model is a null pointer");
    check_options();
  });
  check_same_on_all_ranks("what an engine was built with",
                          settings_of(options_, optimizer),
                          "give every rank the same options, optimizer and number of threads "
                          "(torch::set_num_threads, OMP_NUM_THREADS): they change the result",
                          *ranks_);
  owners_ = options_.shard_group == ShardGroup::kMachine ? &ranks_->machine() : ranks_.get();
  const std::int64_t size = ranks_->size();
  micro_batches_ = options_.micro_batches > 0 ? options_.micro_batches : options_.accumulate * size;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    dealt_.push_back(std::max<std::int64_t>(0, (micro_batches_ - rank + size - 1) / size));
  }
  rounds_ = rounds_of(dealt_);

  all_or_none(*ranks_, [&] { parameters_ = list_parameters(*model_); });
  registered_ = registered_in(*model_);
  check_same_model(*model_, parameters_, *ranks_);
  if (options_.precision != Precision::kAsModel) {
    const auto exact = batch_norm_parameters(*model_);
    for (Parameter& parameter : parameters_) {
      if (parameter.dtype == Dtype::kFloat32 &&
          exact.count(parameter.tensor.unsafeGetTensorImpl()) == 0) {
        parameter.dtype =
            options_.precision == Precision::kFloat16 ? Dtype::kFloat16 : Dtype::kBFloat16;
      }
    }
  }
  if (options_.scale_loss) {
    scaler_ = std::make_unique<LossScaler>(options_.loss_scale);
  }
  for (const Parameter& parameter : parameters_) {
    TRIREME_CHECK(is_float(parameter.dtype) || !parameter.trainable,
                  "parameter ",
                  parameter.name,
                  " is ",
                  dtype_name(parameter.dtype),
                  ": only floating-point parameters have gradients");
    if (parameter.trainable && parameter.dtype == Dtype::kFloat16 && !scaler_) {
      scaler_ = std::make_unique<LossScaler>(options_.loss_scale);
    }
  }
  check_shard_group();
  units_ = plan_units(*model_, parameters_, options_, owners_->size());
  places_ = places_of(units_, parameters_.size());
  const ParameterMemoryContext context{
      *owners_, parameters_, units_, places_, options_, *ledger_, alive_};
  const bool divided = options_.zero >= 1;
  if (options_.zero >= 3 && !owners_->one_machine()) {
    TRIREME_CHECK(options_.placement != Placement::kMapped,
                  "EngineOptions::placement: parameters can be mapped only if all ranks share a "
                  "machine, and these are on several: use kCopied or kAutomatic");
    memory_ = make_scattered_memory(context);
  } else {
    all_or_none(*ranks_, [&] {
      memory_ = options_.zero < 3 ? make_replicated_memory(context, divided)
                : options_.placement == Placement::kCopied ? make_copied_memory(context)
                                                           : make_mapped_memory(context);
    });
  }
  all_or_none(*ranks_, [&] {
    optimizer_ = std::make_unique<ShardedOptimizer>(optimizer, context, *memory_, divided);
  });
  gradients_ = std::make_unique<GradientReducer>(
      parameters_, units_, places_, options_, rounds_, *ranks_, *owners_, *ledger_);
  Originals originals(parameters_.size());
  try {
    take_model(originals);
  } catch (...) {
    give_back(originals);
    throw;
  }
}

// Note [models that are given back]
// All memory but that of the parameters is there before the first of them moves. Theirs is taken
// unit by unit, while that of their tensors goes: a model that fits once need not fit twice. Where
// a later unit fails, those that have moved are read back from where they are, into memory that
// they left before. Those whose values were different (rounded to half precision) stay where they
// were until all have moved, and so do those that build_sharded has divided among the ranks, which
// takes less than the sums and states that are written to after that. A frozen one has neither:
// what was divided is given back whole then.
void EngineCore::take_model(Originals& originals) {
  const auto take = [&](std::size_t unit) {
    for (const std::size_t p : units_[unit].parameters) {
      const Parameter& parameter = parameters_[p];
      const bool same = parameter.tensor.scalar_type() == scalar_type_of(units_[unit].dtype) &&
                        parameter.tensor.strides() == at::IntArrayRef(parameter.strides) &&
                        (watched_of(parameter.tensor) == nullptr || !parameter.trainable);
      if (!same) {
        originals[p] = parameter.tensor.variable_data();
      }
    }
    optimizer_->take_masters(unit);
    memory_->adopt(unit);
    optimizer_->take_averages(unit);
  };
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (owners_->size() == ranks_->size()) {
      take(unit);
    } else {
      all_or_none(*ranks_, [&] { take(unit); });  // the ranks of a machine all fail, or none
    }
  }
  std::size_t buffer_bytes = 0;
  for (const at::Tensor& buffer : model_->buffers()) {
    broadcast_tensor(buffer, *ranks_);
    buffer_bytes += buffer.defined() ? buffer.nbytes() : 0;
  }
  buffers_charge_ = ledger_->charge(MemoryCategory::kBuffers, buffer_bytes);
  for (Parameter& parameter : parameters_) {
    storages_.push_back(parameter.tensor.storage().unsafeGetStorageImpl());
  }
  hooks_ = std::make_unique<GradientHooks>(
      parameters_,
      [this](std::size_t parameter, const at::Tensor& gradient) { receive(parameter, gradient); });
  for (Parameter& parameter : parameters_) {
    parameter.tensor.mutable_grad().reset();
  }
}

void EngineCore::give_back(const Originals& originals) {
  const Unwatched guard;
  const at::NoGradGuard no_grad;
  std::string lost;
  std::string why;
  const auto settle = [&] {
    try {
      memory_->settle();
    } catch (const Error& error) {
      why = error.what();
    }
  };
  settle();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const Watched* watched = watched_of(parameter.tensor);
    if (watched == nullptr || watched->holder() != Watched::Holder::kEngine) {
      continue;  // it has not moved
    }
    try {
      parameter.tensor.set_data(originals[i].defined() ? originals[i] : whole(i));
    } catch (const std::exception& error) {
      lost += concat(lost.empty() ? "" : ", ", parameter.name);
      why = error.what();
    }
  }
  settle();
  if (!lost.empty()) {
    log(LogLevel::kError,
        concat("an engine could not be built, and these parameters of its model could not be given "
               "back: ",
               lost,
               " (",
               why,
               "): build the model again"));
  }
}

at::Tensor EngineCore::whole(std::size_t i) {
  const Parameter& parameter = parameters_[i];
  const Place& place = places_[i];
  const Unit& unit = units_[place.unit];
  at::Tensor tensor = at::empty_strided(
      parameter.sizes, parameter.strides, at::TensorOptions().dtype(scalar_type_of(unit.dtype)));
  const std::int64_t offset = unit.layout.offset(place.index);
  memory_->read(
      place.unit, {offset, offset + parameter.numel}, static_cast<std::byte*>(tensor.data_ptr()));
  return tensor;
}

void EngineCore::check_options() const {
  TRIREME_CHECK(options_.zero >= 0 && options_.zero <= 3,
                "EngineOptions::zero must be 0 (DDP), 1, 2 or 3, found ",
                options_.zero);
  TRIREME_CHECK(options_.placement == Placement::kAutomatic || options_.zero == 3,
                "EngineOptions::placement applies to stage 3 only, found zero = ",
                options_.zero);
  TRIREME_CHECK(options_.micro_batches >= 0 && options_.accumulate >= 1,
                "a step needs at least one micro-batch: EngineOptions::micro_batches is ",
                options_.micro_batches,
                " and accumulate is ",
                options_.accumulate);
  TRIREME_CHECK(
      options_.micro_batches == 0 || options_.accumulate == 1,
      "give EngineOptions::micro_batches (of all ranks) or accumulate (of each rank), not "
      "both");
  TRIREME_CHECK(options_.bucket_count >= 1, "EngineOptions::bucket_count must be at least 1");
  TRIREME_CHECK(options_.clip_norm >= 0 && options_.clip_value >= 0,
                "clipping bounds cannot be negative");
  TRIREME_CHECK(options_.ema_decay >= 0 && options_.ema_decay < 1,
                "EngineOptions::ema_decay must be in [0, 1), found ",
                options_.ema_decay);
}

// Stages inside of machines: what the ranks of each begin with is world rank 0's, and every machine
// sums all gradients.
void EngineCore::check_shard_group() {
  if (options_.shard_group == ShardGroup::kWorld) {
    return;
  }
  TRIREME_CHECK(options_.zero >= 1,
                "EngineOptions::shard_group applies to stages 1 to 3, found zero = 0");
  if (owners_->size() == ranks_->size()) {
    return;
  }
  TRIREME_CHECK(
      rounds_ == 1,
      "EngineOptions::shard_group: the ranks of a machine sum once in a step, this one has ",
      rounds_,
      " rounds: use SumOrder::kLocalFirst, or as many micro-batches as ranks");
  TRIREME_CHECK(!options_.gradient_hook,
                "EngineOptions::shard_group: a gradient hook sums for all ranks; use kWorld");
  for (const Parameter& parameter : parameters_) {
    TRIREME_CHECK(parameter.numel == 0 || has_memory(parameter.tensor),
                  "parameter ",
                  parameter.name,
                  " was built divided among the ranks: with EngineOptions::shard_group, build the "
                  "model whole");
    broadcast_tensor(parameter.tensor, *ranks_);
  }
}

void EngineCore::receive(std::size_t parameter, const at::Tensor& gradient) {
  if (!in_backward_ && anyone_in_backward()) {
    return;
  }
  TRIREME_CHECK(
      in_backward_,
      "parameter ",
      parameters_[parameter].name,
      " got a gradient outside of engine.backward(): call engine.backward(loss) instead of "
      "loss.backward()");
  MemoryLimit::check();  // between operators
  gradients_->add(parameter, gradient);
}

void EngineCore::check_alive() const {
  TRIREME_CHECK(!unwrapped_, "this engine has given its model back (unwrap): build another one");
  TRIREME_CHECK(!failed_,
                "a backward pass failed on rank ",
                ranks_->rank(),
                " and left its step half done: call unwrap() and build a new engine");
  TRIREME_CHECK(!update_failed_,
                "the update of step ",
                steps_ + 1,
                " failed on rank ",
                ranks_->rank(),
                ": parameters, optimizer states and buffers may be half updated; call unwrap(), "
                "build a new engine and load the last checkpoint");
  TRIREME_CHECK(
      !half_loaded_,
      "loading into this engine failed and left it half loaded: call unwrap() and build a "
      "new engine");
}

void EngineCore::check_between_steps(const char* what) const {
  check_alive();
  check_no_scope(what);
  TRIREME_CHECK(round_ == 0 && !backward_done_, what, in_the_middle());
}

std::string EngineCore::in_the_middle() const {
  return concat(" was called in the middle of a step, after ",
                round_,
                " of this rank's ",
                local_micro_batches(),
                local_micro_batches() == 1 ? " micro-batch" : " micro-batches",
                ": call it before backward() or after the step() that ends the step; where no more "
                "micro-batches will come, end it with Engine::flush() on every rank");
}

void EngineCore::check_no_scope(const char* what) const {
  TRIREME_CHECK(
      open_scopes_ == 0, what, " was called while a gathered() scope is open: close it first");
}

void EngineCore::check_registered() const {
  const std::vector<const at::TensorImpl*> now = registered_in(*model_);
  if (now == registered_) {
    return;
  }
  TRIREME_CHECK(now.size() == registered_.size(),
                "the model had ",
                registered_.size(),
                " parameters when the engine was built and has ",
                now.size(),
                ": those registered since then would not be trained; register them earlier, or "
                "call engine.unwrap() and build a new engine");
  const auto is_in = [](const std::vector<const at::TensorImpl*>& list, const at::Tensor& tensor) {
    return std::find(list.begin(), list.end(), tensor.unsafeGetTensorImpl()) != list.end();
  };
  for (const auto& item : model_->named_parameters(/*recurse=*/true)) {
    TRIREME_CHECK(is_in(registered_, item.value()),
                  "parameter ",
                  item.key(),
                  " is not the tensor it was when the engine was built (replace_module?): it would "
                  "not be trained; call engine.unwrap(), replace it, and build a new engine");
  }
  for (const Parameter& parameter : parameters_) {
    TRIREME_CHECK(is_in(now, parameter.tensor),
                  "parameter ",
                  parameter.name,
                  " was taken out of the model after the engine was built: call engine.unwrap(), "
                  "change the model, and build a new engine");
  }
}

void EngineCore::check_parameters() const {
  check_registered();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    TRIREME_CHECK(parameter.tensor.storage().unsafeGetStorageImpl() == storages_[i] &&
                      parameter.tensor.sizes() == at::IntArrayRef(parameter.sizes),
                  "parameter ",
                  parameter.name,
                  " was given other memory or another shape (set_data, to()) after the engine was "
                  "built: change values inside engine.gathered(), and shapes before building it");
    TRIREME_CHECK(parameter.tensor.requires_grad() == parameter.trainable,
                  "parameter ",
                  parameter.name,
                  parameter.trainable ? " was frozen" : " was unfrozen",
                  " after the engine was built: call engine.unwrap(), change it, and build a new "
                  "engine");
  }
}

std::int64_t EngineCore::rounds_of(const std::vector<std::int64_t>& dealt) const {
  return one_communication() ? 1 : *std::max_element(dealt.begin(), dealt.end());
}

// Note [dealing]
// In round k every rank with more than k micro-batches computes one, and the rounds' micro-batches
// are numbered in rank order, one round after the other. The chain over the micro-batches is then
// the sum over the rounds, whoever takes part in which: those who do not are absent terms.
std::int64_t EngineCore::micro_batch(std::int64_t k) const {
  const auto rank = static_cast<std::size_t>(ranks_->rank());
  TRIREME_CHECK(k >= 0 && k < dealt_[rank],
                "rank ",
                rank,
                " computes ",
                dealt_[rank],
                " micro-batches in a step, there is no number ",
                k);
  std::int64_t number = 0;
  for (std::size_t other = 0; other < dealt_.size(); ++other) {
    number += std::min(dealt_[other], k) + (other < rank && dealt_[other] > k ? 1 : 0);
  }
  return number;
}

void EngineCore::deal(const std::vector<std::int64_t>& micro_batches) {
  check_alive();
  TRIREME_CHECK(round_ == 0 && !backward_done_ && !completed_, "deal()", in_the_middle());
  check_same_on_all_ranks(
      "what deal() was given",
      {listed(micro_batches, [](std::int64_t count) { return concat(count); })},
      "give every rank the same numbers, such as those that one rank measured and broadcast",
      *ranks_);
  std::int64_t total = 0;
  for (const std::int64_t count : micro_batches) {
    TRIREME_CHECK(count >= 0, "deal(): a rank cannot compute ", count, " micro-batches");
    total += count;
  }
  TRIREME_CHECK(micro_batches.size() == dealt_.size() && total > 0,
                "deal() needs a number for each of the ",
                dealt_.size(),
                " ranks, not all 0; found ",
                micro_batches.size(),
                " that add up to ",
                total);
  // Groups are of consecutive micro-batches, and of consecutive ranks: those must be the same.
  bool by_turns = true;
  for (std::size_t rank = 1; rank < micro_batches.size(); ++rank) {
    by_turns &= micro_batches[rank] <= micro_batches[rank - 1] &&
                micro_batches[rank] + 1 >= micro_batches.front();
  }
  TRIREME_CHECK(
      by_turns || ranks_->sum_group() == 1,
      "deal(): with sum_group ",
      ranks_->sum_group(),
      " micro-batches are dealt to the ranks in turn; leave it at 1 to deal them differently");
  const std::int64_t rounds = rounds_of(micro_batches);
  TRIREME_CHECK(rounds == 1 || owners_->size() == ranks_->size(),
                "deal(): with EngineOptions::shard_group every rank sums once in a step, found ",
                rounds,
                " rounds: use SumOrder::kLocalFirst");
  gradients_->set_rounds(rounds);  // may find no memory: nothing has changed then
  dealt_ = micro_batches;
  micro_batches_ = total;
  rounds_ = rounds;
}

void EngineCore::set_learning_rate(double base) {
  TRIREME_CHECK(std::isfinite(base) && base >= 0,
                "set_learning_rate: expected a number of 0 or more, found ",
                base);
  // A rate that the others have not heard of could be this rank's alone.
  TRIREME_CHECK(!completed_ && !(backward_done_ && complete_here()),
                "set_learning_rate() was called between the last backward() of a step and step(), "
                "when the ranks have compared their rates: call it before that backward(), or "
                "after step()");
  base_rate_ = base;
}

double EngineCore::learning_rate() const {
  const Rate now = rate();
  TRIREME_CHECK(std::isfinite(now.value()) && now.value() >= 0,
                "the learning rate of step ",
                steps_ + 1,
                " is ",
                now.value(),
                ", a base of ",
                now.base,
                " times ",
                now.factor,
                " from EngineOptions::schedule: expected a number of 0 or more");
  return now.value();
}

void EngineCore::backward(const at::Tensor& loss) {
  check_alive();
  TRIREME_CHECK(
      !backward_done_,
      "backward() was called twice without step(): call step() after every micro-batch; it "
      "updates the parameters when the step's last one is done");
  TRIREME_CHECK(local_micro_batches() > 0,
                "rank ",
                ranks_->rank(),
                " has no micro-batch in a step of ",
                micro_batches_,
                " on ",
                ranks_->size(),
                " ranks: call step() alone");
  TRIREME_CHECK(loss.defined() && loss.numel() == 1 && loss.requires_grad(),
                "backward() needs a loss of one element that depends on the parameters, found ",
                !loss.defined()     ? "an undefined tensor"
                : loss.numel() != 1 ? "several elements"
                                    : "one that requires no gradient");
  check_no_scope("backward()");
  check_parameters();
  TRIREME_CHECK(
      !take_half_autocast() || scaler_,
      "the loss was computed under Autocast(at::kHalf), whose gradients underflow without "
      "a loss scale: set EngineOptions::scale_loss, or use bfloat16");
  gradients_->begin_round(round_ + 1 == local_micro_batches(), hooks_->reachable_from(loss));
  const InBackward mark(in_backward_);
  failed_ = true;  // until the end is reached
  if (scaler_) {
    (loss * scaler_->scale()).backward();
  } else {
    loss.backward();
  }
  MemoryLimit::check();  // before the others are told that this rank's gradients are good
  gradients_->end_round({.took_part = true, .rate = rate()});
  failed_ = false;
  backward_done_ = true;
  ++round_;
}

void EngineCore::complete(bool joined) {
  if (completed_) {
    return;
  }
  const std::int64_t done = one_communication() ? std::min<std::int64_t>(round_, 1) : round_;
  for (std::int64_t round = done; round < rounds_; ++round) {
    // A process alone has its sums when the step ends, not in each round that it leaves out.
    gradients_->begin_round(round + 1 == rounds_, std::vector<bool>(parameters_.size(), false));
    gradients_->end_round({.joined = joined, .given_up = !given_up_.empty(), .rate = rate()});
  }
  agreement_ = gradients_->finish();
  completed_ = true;
}

void EngineCore::require_complete(const char* what) const {
  TRIREME_CHECK(backward_done_ || completed_ || local_micro_batches() == 0,
                what,
                " was called without backward(): call it between the last backward() of a step and "
                "step()");
}

GradientTransform EngineCore::transform() const {
  const bool present = options_.divisor == Divisor::kPresent;
  return {.divisor = static_cast<double>(present ? agreement_.micro_batches : micro_batches_),
          .unscale = scaler_ ? scaler_->unscale() : 1,
          .clip_factor = clip_factor_,
          .clip_value = options_.clip_value};
}

double EngineCore::clip_grad_norm(double max_norm) {
  check_alive();
  TRIREME_CHECK(max_norm > 0, "clip_grad_norm: the bound must be positive, found ", max_norm);
  require_complete("clip_grad_norm()");
  if (!complete_here()) {
    return 0;
  }
  complete(false);
  tell_of_given_up();
  announce(Act::kClip, max_norm);
  return clip_to(max_norm, *ranks_);
}

// Note [clipping what is not finite]
// Somebody who has set check_gradients = false gets what torch.nn.utils.clip_grad_norm_ gives: with
// an infinite norm the factor is 0, with one that is not a number neither is any gradient. Finite
// gradients are never let through unbounded.
double EngineCore::clip_to(double max_norm, Communicator& compared) {
  const GradientTransform scaling = transform();
  const auto measured = optimizer_->norm(gradients_->sums(),
                                         agreement_.used,
                                         {.divisor = scaling.divisor, .unscale = scaling.unscale},
                                         max_norm,
                                         compared);
  if (measured.least_bound != measured.most_bound) {
    forget_step();
    throw ConfigError(concat("clip_grad_norm: the bound differs between ranks in step ",
                             steps_ + 1,
                             ": rank ",
                             ranks_->rank(),
                             " has ",
                             max_norm,
                             ", the smallest is ",
                             measured.least_bound,
                             " and the largest ",
                             measured.most_bound,
                             ": give every rank the same; nothing was changed and the step's "
                             "gradients are dropped"));
  }
  norm_ = measured.norm;
  norm_finite_ = std::isfinite(norm_);
  clip_factor_ = clip_factor(norm_, max_norm);
  clipped_ = true;
  return norm_;
}

void EngineCore::announce(Act act, double value) {
  if (agreement_.any_joined) {
    std::vector<double> message = {static_cast<double>(act), value};
    ranks_->broadcast(message, agreement_.lead).wait();
  }
}

bool EngineCore::step() {
  check_alive();
  TRIREME_CHECK(backward_done_ || local_micro_batches() == 0,
                "step() was called without backward(): call backward(loss) for every micro-batch; "
                "where no more will come, end the step with Engine::flush() on every rank");
  backward_done_ = false;
  if (!complete_here()) {
    return false;
  }
  check_no_scope("step()");
  complete(false);
  announce(Act::kFinish, base_rate_);
  const bool any = agreement_.micro_batches > 0;
  finish_step();
  return any;
}

bool EngineCore::flush() {
  check_alive();
  TRIREME_CHECK(!backward_done_,
                "flush() was called between backward() and step(): call step() first");
  check_no_scope("flush()");
  if (one_communication()) {
    round_ = 0;  // nothing was sent before
  }
  complete(false);
  tell_of_given_up();
  announce(Act::kFinish, base_rate_);
  return finish_step();
}

void EngineCore::give_up(const std::string& reason) {
  TRIREME_CHECK(!unwrapped_, "this engine has given its model back (unwrap): build another one");
  TRIREME_CHECK(!update_failed_,
                "give_up() was called after an update that failed: parameters are half updated, "
                "call unwrap()");
  TRIREME_CHECK(!complete_here(),
                "give_up() was called after this rank's last micro-batch: there is nothing to give "
                "up");
  check_no_scope("give_up()");
  given_up_ = reason.empty() ? "no reason was given" : reason;
  // In the middle of a round the others need its end: what has not come will not come.
  const bool ends_round = failed_ && (!one_communication() || round_ + 1 == local_micro_batches());
  if (ends_round) {
    gradients_->end_round({.given_up = true, .rate = rate()});
  }
  if (one_communication()) {
    round_ = 0;  // nothing was sent before
  }
  round_ += ends_round ? 1 : 0;
  failed_ = false;
  backward_done_ = false;
  complete(false);
  announce(Act::kFinish, base_rate_);
  finish_step();
  throw InternalError("a step that was given up was finished");
}

// The rank that gave up is at the step's end already: nobody asks it for anything more.
void EngineCore::tell_of_given_up() {
  if (agreement_.given_up_rank >= 0) {
    announce(Act::kFinish, base_rate_);
    refuse_given_up();
  }
}

void EngineCore::refuse_given_up() {
  const int rank = agreement_.given_up_rank;
  std::vector<std::uint8_t> text(256, 0);
  std::copy_n(given_up_.begin(), std::min(given_up_.size(), text.size() - 1), text.begin());
  ranks_->broadcast(text, rank).wait();
  forget_step();
  throw StepGivenUp(rank,
                    concat("rank ",
                           rank,
                           " gave up step ",
                           steps_ + 1,
                           ": ",
                           reinterpret_cast<const char*>(text.data())));
}

void EngineCore::join() {
  check_alive();
  TRIREME_CHECK(!backward_done_ && round_ == 0, "join()", in_the_middle());
  check_no_scope("join()");
  while (true) {
    complete(true);
    if (agreement_.all_joined) {
      forget_step();
      return;
    }
    // The ranks that have data decide what happens with the gradients.
    for (Act act = Act::kClip; act != Act::kFinish;) {
      std::vector<double> message(2);
      ranks_->broadcast(message, agreement_.lead).wait();
      act = static_cast<Act>(message[0]);
      if (act == Act::kClip) {
        clip_to(message[1], *ranks_);
      } else if (act == Act::kGradient) {
        gather_gradient(static_cast<std::size_t>(message[1]));
      } else {
        base_rate_ = message[1];
      }
    }
    finish_step();
  }
}

void EngineCore::refuse_gradients() {
  const int rank = agreement_.bad_rank;
  const std::string name = parameters_[agreement_.bad_parameter].name;
  forget_step();
  throw GradientError(
      rank,
      concat("the gradient of parameter ",
             name,
             " is not finite on rank ",
             rank,
             " in step ",
             steps_ + 1,
             ": nothing was changed and the step's gradients are dropped; look at the data, the "
             "loss and the learning rate, or clip (in C++, EngineOptions::check_gradients = false "
             "goes on regardless)"));
}

void EngineCore::refuse_overflow() {
  const int rank = agreement_.bad_rank;
  const std::string what =
      rank < 0 ? std::string("the norm of the gradient")
               : concat("the gradient of parameter ", parameters_[agreement_.bad_parameter].name);
  const double scale = scaler_->scale();
  forget_step();
  throw GradientError(rank,
                      concat(what,
                             " is not finite",
                             rank < 0 ? "" : concat(" on rank ", rank),
                             " in step ",
                             steps_ + 1,
                             " although the loss scale is at its least, ",
                             scale,
                             ", after ",
                             scaler_->state().skipped,
                             " skipped steps: the loss itself is not finite, or too large for "
                             "float16; look at the data and the learning rate, clip, or use "
                             "bfloat16"));
}

bool EngineCore::finish_step() {
  if (agreement_.given_up_rank >= 0) {
    refuse_given_up();
  }
  if (options_.check_gradients && agreement_.bad_rank >= 0 && !scaler_) {
    refuse_gradients();
  }
  if (agreement_.other_rate_rank >= 0) {
    const Agreement agreed = agreement_;
    forget_step();
    throw ConfigError(concat("the learning rate differs between ranks in step ",
                             steps_ + 1,
                             ": rank ",
                             agreed.lead,
                             " has ",
                             agreed.lead_rate,
                             ", rank ",
                             agreed.other_rate_rank,
                             " has ",
                             agreed.other_rate,
                             ": call set_learning_rate() with the same value, and build engines "
                             "with the same EngineOptions::schedule, on every rank; nothing was "
                             "changed"));
  }
  if (agreement_.micro_batches == 0) {
    forget_step();  // nobody had data: no update, and the schedule does not move
    return false;
  }
  double step_rate = 0;
  try {
    step_rate = learning_rate();
  } catch (const ConfigError&) {
    forget_step();  // all ranks have the same one
    throw;
  }
  bool overflow = agreement_.bad_rank >= 0;
  const bool skips = overflow && scaler_;  // there is nothing to clip
  if (options_.clip_norm > 0 && !clipped_ && !skips) {
    clip_to(options_.clip_norm, *owners_);  // an option: it was compared
  }
  if (!norm_finite_ && !overflow) {
    overflow = true;  // of a sum: no single gradient is to blame
    if (!scaler_ && options_.check_gradients) {
      forget_step();
      throw GradientError(
          -1,
          concat("the norm of the gradient is not finite in step ",
                 steps_ + 1,
                 ", although every micro-batch's gradient is: their sum overflows; nothing was "
                 "changed and the step's gradients are dropped"));
    }
  }
  if (overflow && scaler_ && scaler_->at_least() && options_.check_gradients) {
    refuse_overflow();
  }
  const GradientTransform scaling = transform();  // with the scale that the sums carry
  const bool take = !scaler_ || scaler_->update(overflow);
  if (take) {
    update_failed_ = true;  // until the end is reached
    memory_->begin_update();
    optimizer_->update(gradients_->sums(), agreement_.used, scaling, step_rate);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (agreement_.used[i]) {
        // A graph that was built before must not be used after.
        parameters_[i].tensor.unsafeGetTensorImpl()->bump_version();
      }
    }
    forget_casts();
    ++steps_;
  }
  const int lead = agreement_.lead;
  forget_step();
  if (options_.broadcast_buffers && ranks_->size() > 1) {
    broadcast_buffers(lead);  // of a rank that still trains
  }
  update_failed_ = false;
  return take;
}

void EngineCore::forget_step() {
  gradients_->reset();
  memory_->end_of_step();
  norm_finite_ = true;
  round_ = 0;
  backward_done_ = false;
  completed_ = false;
  clip_factor_ = 1;
  clipped_ = false;
  given_up_.clear();
  agreement_ = {};
}

void EngineCore::broadcast_buffers(int root) {
  for (const at::Tensor& buffer : model_->buffers()) {
    broadcast_tensor(buffer, *ranks_, root);
  }
}

std::size_t EngineCore::parameter_named(const std::string& name) const {
  const auto all = model_->named_parameters(true);
  const at::Tensor* tensor = all.find(name);
  TRIREME_CHECK(tensor != nullptr,
                "the model has no parameter ",
                name,
                "; its first one is ",
                parameters_[0].name);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.is_same(*tensor)) {
      return i;
    }
  }
  throw ConfigError(concat(name, " was registered after the engine was built"));
}

at::Tensor EngineCore::grad(const std::string& name) {
  check_alive();
  require_complete("grad()");
  TRIREME_CHECK(complete_here(),
                "grad(): micro-batch ",
                round_,
                " of ",
                local_micro_batches(),
                " is not the step's last one: the gradient is not complete");
  const std::size_t parameter = parameter_named(name);
  TRIREME_CHECK(
      parameters_[parameter].trainable, "parameter ", name, " is frozen: it has no gradient");
  complete(false);
  tell_of_given_up();
  announce(Act::kGradient, static_cast<double>(parameter));
  return gather_gradient(parameter);
}

at::Tensor EngineCore::gather_gradient(std::size_t parameter) {
  if (!agreement_.used[parameter]) {
    return {};
  }
  const Place& place = places_[parameter];
  const Unit& unit = units_[place.unit];
  // The ranges of the ranks, also where one rank holds more: it is the same.
  const Range mine = unit.ranges[static_cast<std::size_t>(owners_->rank())];
  const std::byte* own = nullptr;
  std::int64_t first = 0;
  for (const Piece& piece : unit.layout.pieces(mine)) {
    if (piece.parameter == place.index) {
      own = gradients_->sums().anyones(place.unit, piece);
      first = piece.offset;
    }
  }
  at::Tensor whole = optimizer_->gather(parameter, own, first, unit.sum_dtype());
  const GradientTransform scaling = transform();
  const at::NoGradGuard no_grad;
  whole.div_(scaling.divisor).mul_(scaling.unscale);
  if (clip_factor_ != 1) {
    whole.mul_(clip_factor_);
  }
  return whole;
}

at::Tensor EngineCore::average(const std::string& name) {
  check_alive();
  TRIREME_CHECK(options_.ema_decay > 0,
                "average(): no moving average is kept: set EngineOptions::ema_decay");
  const std::size_t parameter = parameter_named(name);
  TRIREME_CHECK(
      parameters_[parameter].trainable, "parameter ", name, " is frozen: it has no moving average");
  return optimizer_->average(parameter);
}

std::unique_ptr<GatherScope> EngineCore::gathered(const std::vector<std::string>& names) {
  check_alive();
  TRIREME_CHECK(round_ == 0 && !backward_done_, "gathered()", in_the_middle());
  std::vector<std::size_t> wanted;
  for (const std::string& name : names) {
    wanted.push_back(parameter_named(name));
  }
  if (names.empty()) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      wanted.push_back(i);
    }
  }
  check_no_scope("gathered()");
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  check_parameters();
  return std::make_unique<GatherScope>(*this, wanted);
}

void EngineCore::unwrap() {
  TRIREME_CHECK(!unwrapped_, "this engine has given its model back already");
  check_no_scope("unwrap()");
  TRIREME_CHECK(
      failed_ || update_failed_ || (round_ == 0 && !backward_done_), "unwrap()", in_the_middle());
  if (update_failed_) {
    // Units that were updated before may still be on their way between the ranks.
    try {
      memory_->finish_update();
    } catch (const Error& error) {
      log(LogLevel::kDebug, concat("unwrap() after an update that failed: ", error.what()));
    }
  }
  const Unwatched guard;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.set_data(whole(i));
  }
  hooks_.reset();
  unwrapped_ = true;
  ranks_->barrier().wait();
}

MemoryReport EngineCore::memory_report() {
  MemoryReport report;
  const MemoryUse mine = ledger_->use();
  report.ranks.resize(static_cast<std::size_t>(ranks_->size()));
  constexpr std::int64_t kBytes = sizeof(MemoryUse);
  ranks_
      ->all_gather({&mine, kBytes, Dtype::kUint8},
                   {report.ranks.data(), kBytes * ranks_->size(), Dtype::kUint8})
      .wait();
  double predicted = 0;
  double ddp = 0;
  for (const Unit& unit : units_) {
    const auto element = static_cast<double>(dtype_bytes(unit.dtype));
    const auto exact = static_cast<double>(dtype_bytes(unit.sum_dtype()));
    const double states = exact * (optimizer_->state_count() + (unit.has_masters() ? 1 : 0));
    const ElementBytes bytes{.parameter = element,
                             .gradient = unit.trainable ? exact : 0,
                             .optimizer = unit.trainable ? states : 0};
    const std::int64_t numel = unit.layout.parameters_numel();
    predicted += memory_share(options_.zero, owners_->size(), numel, bytes).total();
    ddp += memory_share(0, owners_->size(), numel, bytes).total();
  }
  report.predicted_bytes = static_cast<std::int64_t>(predicted);
  report.ddp_bytes = static_cast<std::int64_t>(ddp);
  return report;
}

}  // namespace trireme::detail
