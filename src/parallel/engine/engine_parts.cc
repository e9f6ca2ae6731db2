#include "parallel/engine/engine_parts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_complex.h>
#include <torch/nn/modules/batchnorm.h>

#include "device/driver.h"
#include "parallel/engine/elastic_check.h"
#include "parallel/engine/model_move.h"
#include "parallel/engine/options_check.h"
#include "parallel/gradient/backward_mark.h"
#include "parallel/memory/runs.h"
#include "parallel/model/broadcast.h"
#include "parallel/model/operator_watch.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/parallel/sync_batch_norm.h"
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

// A GPU has another number in another process.
bool on_one_device(Communicator& ranks, Device device) {
  if (device.is_host()) {
    return true;
  }
  const std::vector<std::string> all = all_texts(ranks, device::driver(device).identity());
  return std::ranges::count(all, all.front()) == std::ssize(all);
}

}  // namespace

EngineParts::EngineParts(std::shared_ptr<torch::nn::Module> module,
                         const Optimizer& rule,
                         const EngineOptions& engine_options,
                         std::shared_ptr<Communicator> communicator)
    : model(std::move(module)),
      options(engine_options),
      ranks(std::move(communicator)),
      base_rate(rule.learning_rate()) {
  TRIREME_CHECK(ranks, "Engine: the world is a null pointer: pass what trireme::init() returned");
  on_all_ranks(*ranks, [&] {
    TRIREME_CHECK(model, "Engine: the model is a null pointer");
    check_options(options);
    check_elastic_engine(options, *model);
  });
  check_same_on_all_ranks(*ranks,
                          "what an engine was built with",
                          settings_of(options, rule),
                          "give every rank the same options, optimizer and number of threads "
                          "(torch::set_num_threads, OMP_NUM_THREADS): they change the result");
  owners = options.shard_group == ShardGroup::kMachine ? &ranks->machine() : ranks.get();
  dealt = MicroBatches::in_turn(
      options.micro_batches > 0 ? options.micro_batches : options.accumulate * ranks->size(),
      ranks->size());
  list_model();
  check_shard_group();
  if (rule.takes_whole_parameters()) {
    TRIREME_CHECK(options.split != Split::kDimension && options.shares.empty(),
                  "the optimizer {} updates whole parameters: leave EngineOptions::split and "
                  "shares as they are, or set Split::kLayer",
                  {rule.name()});
    options.split = Split::kLayer;  // where parameters are divided changes no bit
  }
  plan.one_device = on_one_device(*owners, plan.device);
  plan.complete(*model, options, *ranks, *owners);
  memory = make_parameter_memory(context());
  on_all_ranks(*ranks,
               [&] { optimizer = std::make_unique<ShardedOptimizer>(rule, context(), *memory); });
  on_all_ranks(*ranks, [&] {
    optimizer->rules().check_device(options.offload.any() ? Device{} : plan.device);
  });
  check_same_on_all_ranks(*ranks,
                          "the parameter groups of an engine's optimizer",
                          {optimizer->rules().assignment()},
                          "give every rank the same groups: they change the result");
  gradients = std::make_unique<GradientRounds>(context(), rounds_of(dealt));
  take_model();
}

void EngineParts::list_model() {
  on_all_ranks(*ranks, [&] {
    plan.parameters = list_parameters(*model, Gpus::kYes);
    plan.device = common_device_of(plan.parameters);
    check_gpu_options(plan, options, *ranks);
    check_offload(plan, options);
  });
  check_same_model(*model, plan.parameters, *ranks);
  choose_precision();
  check_rounded(plan.parameters, options);
  check_pruning(plan.parameters, options);
  if (options.scale_loss) {
    scaler = std::make_unique<LossScaler>(options.loss_scale);
  }
  for (const Parameter& parameter : plan.parameters) {
    TRIREME_CHECK(is_float(parameter.dtype) || !parameter.trainable,
                  "parameter {} is {}: only floating-point parameters have gradients",
                  {parameter.name, dtype_name(parameter.dtype)});
    if (parameter.trainable && parameter.dtype == Dtype::kFloat16 && !scaler) {
      scaler = std::make_unique<LossScaler>(options.loss_scale);
    }
  }
  check_feedback();
}

// What was left out carries the scale of its step.
void EngineParts::check_feedback() const {
  const auto& compress = options.compress;
  TRIREME_CHECK(
      !compress || !compress->format().feedback || !scaler,
      "compressor {} keeps what it leaves out, which a loss scale that changes would make "
      "too large or too small: use bfloat16 or float32, or one without feedback",
      {compress->format().name});
}

void EngineParts::choose_precision() {
  if (options.precision == Precision::kAsModel) {
    return;
  }
  const auto exact = batch_norm_parameters(*model);
  for (Parameter& parameter : plan.parameters) {
    if (parameter.dtype == Dtype::kFloat32 && !parameter.complex &&
        exact.count(parameter.tensor.unsafeGetTensorImpl()) == 0) {
      parameter.dtype =
          options.precision == Precision::kFloat16 ? Dtype::kFloat16 : Dtype::kBFloat16;
    }
  }
}

// Stages inside of machines: what the ranks of each begin with is world rank 0's, and every machine
// sums all gradients.
void EngineParts::check_shard_group() {
  if (options.shard_group == ShardGroup::kWorld) {
    return;
  }
  TRIREME_CHECK(options.zero >= 1,
                "EngineOptions::shard_group applies to stages 1 to 3, found zero = 0");
  if (owners->size() == ranks->size()) {
    return;
  }
  TRIREME_CHECK(rounds_of(dealt) == 1,
                "EngineOptions::shard_group: the ranks of a machine sum once in a step, this one "
                "has {} rounds: use SumOrder::kLocalFirst, or as many micro-batches as ranks",
                {rounds_of(dealt)});
  TRIREME_CHECK(!options.gradient_hook,
                "EngineOptions::shard_group: a gradient hook sums for all ranks; use kWorld");
  for (const Parameter& parameter : plan.parameters) {
    TRIREME_CHECK(parameter.numel == 0 || has_memory(parameter.tensor),
                  "parameter {} was built divided among the ranks: with "
                  "EngineOptions::shard_group, build the model whole",
                  {parameter.name});
    broadcast_tensor(parameter.tensor, *ranks);
  }
}

void EngineParts::take_model() {
  ModelMove move(*this);
  try {
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      if (plan.ownership.by_machine()) {
        on_all_ranks(*ranks, [&] { move.take(unit); });  // the ranks of a machine all fail, or none
      } else {
        move.take(unit);
      }
    }
    broadcast_buffers(0);
    std::size_t buffer_bytes = 0;
    for (const at::Tensor& buffer : model->buffers()) {
      buffer_bytes += buffer.defined() ? buffer.nbytes() : 0;
    }
    buffers_charge = ledger->charge(MemoryCategory::kBuffers, buffer_bytes);
    unchanged.emplace(*model, plan.parameters);
    kept = KeptGradients(plan.parameters.size());
    hooks = std::make_unique<GradientHooks>(
        plan.parameters, [this](std::size_t parameter, const at::Tensor& gradient) {
          receive(parameter, gradient);
        });
    if (std::ranges::any_of(plan.parameters, [](const Parameter& p) { return !!p.bound; })) {
      bounds = std::make_unique<RowBounds>(context(), *memory, optimizer->memory());
    }
    if (options.prune.fraction > 0) {
      pruner = std::make_unique<Pruner>(context(), optimizer->memory());
    }
    for (const Parameter& parameter : plan.parameters) {
      parameter.tensor.mutable_grad().reset();
    }
  } catch (...) {
    move.give_back();
    throw;
  }
}

void EngineParts::broadcast_buffers(int root) {
  for (const at::Tensor& buffer : model->buffers()) {
    broadcast_tensor(buffer, *ranks, root);
  }
}

at::Tensor EngineParts::whole(std::size_t parameter) {
  const Parameter& p = plan.parameters[parameter];
  at::Tensor tensor = at::empty_strided(p.sizes,
                                        p.strides,
                                        at::TensorOptions()
                                            .dtype(scalar_type_of(plan.unit_of(parameter).dtype))
                                            .device(torch_device_of(plan.device)));
  memory->read(plan.places[parameter].unit, plan.range_of(parameter), run_of(tensor));
  return p.complex ? at::view_as_complex(tensor) : tensor;
}

void EngineParts::receive(std::size_t parameter, const at::Tensor& gradient) {
  const bool here = phase.is(Phase::kBackward);
  if (!here && anyone_in_backward()) {
    return;
  }
  TRIREME_CHECK(here,
                "parameter {} got a gradient outside of engine.backward(): call "
                "engine.backward(loss) instead of loss.backward()",
                {plan.parameters[parameter].name});
  if (!plan.parameters[parameter].tensor.requires_grad()) {
    return;  // frozen since forward: as in LibTorch, nothing comes of it
  }
  MemoryLimit::check();  // between operators
  if (const at::Tensor complete = kept.take(parameter, gradient); complete.defined()) {
    gradients->add(parameter, complete);
  }
}

double EngineParts::checked_rate() const {
  const Rate now = rate();
  TRIREME_CHECK(std::isfinite(now.value()) && now.value() >= 0,
                "the learning rate of step {} is {}, a base of {} times {} from "
                "EngineOptions::schedule: expected a number of 0 or more",
                {steps + 1, now.value(), now.base, now.factor});
  return now.value();
}

void EngineParts::check_alive() const {
  TRIREME_CHECK(!phase.is(Phase::kUnwrapped),
                "this engine has given its model back (unwrap): build another one");
  TRIREME_CHECK(!phase.is(Phase::kBackward),
                "an engine was called inside of its own backward(), by a hook of a tensor: let the "
                "hook note what is to be done, and call the engine after backward()");
  TRIREME_CHECK(!phase.is(Phase::kBackwardFailed),
                "a backward pass failed on rank ",
                ranks->rank(),
                " and left its step half done: call unwrap() and build a new engine");
  TRIREME_CHECK(
      !phase.is(Phase::kUpdating),
      "the update of step {} failed on rank {}: parameters, optimizer states and buffers may be "
      "half updated; call unwrap(), build a new engine and load the last checkpoint",
      {steps + 1, ranks->rank()});
  TRIREME_CHECK(
      !phase.is(Phase::kHalfLoaded),
      "loading into this engine failed and left it half loaded: call unwrap() and build a "
      "new engine");
}

void EngineParts::check_no_scope(const char* what) const {
  TRIREME_CHECK(!phase.is(Phase::kGathered),
                what,
                " was called while a gathered() scope is open: close it first");
}

void EngineParts::check_between_steps(const char* what) const {
  check_alive();
  check_no_scope(what);
  TRIREME_CHECK(phase.is(Phase::kBetweenSteps), what, in_the_middle());
}

std::string EngineParts::in_the_middle() const {
  return concat(" was called in the middle of a step, after ",
                phase.done(),
                " of this rank's ",
                own_micro_batches(),
                own_micro_batches() == 1 ? " micro-batch" : " micro-batches",
                ": call it before backward() or after the step() that ends the step; where no more "
                "micro-batches will come, end it with Engine::flush() or drop() on every rank");
}

}  // namespace trireme::detail
