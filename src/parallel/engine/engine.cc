#include "trireme/parallel/engine.h"

#include <cmath>
#include <string_view>

#include "parallel/engine/engine_parts.h"
#include "parallel/model/operator_watch.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"
#include "trireme/tensor/span.h"

namespace trireme {

using detail::Act;
using detail::EngineParts;
using detail::MicroBatches;
using detail::Phase;

EngineBase::EngineBase(std::shared_ptr<torch::nn::Module> model,
                       const Optimizer& optimizer,
                       const EngineOptions& options,
                       std::shared_ptr<Communicator> ranks)
    : parts_(
          std::make_unique<EngineParts>(std::move(model), optimizer, options, std::move(ranks))) {}
EngineBase::EngineBase(EngineBase&&) noexcept = default;
EngineBase::~EngineBase() = default;

EngineParts& EngineBase::parts() const {
  TRIREME_CHECK(parts_, "this engine was moved from: use the one that it became");
  return *parts_;
}

void EngineBase::alive() const {
  detail::mark(PulsePhase::kByHand);
}

bool EngineBase::step() {
  EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(e.phase.is(Phase::kBackwardDone, Phase::kSummed) || e.own_micro_batches() == 0,
                "step() was called ",
                e.phase.is(Phase::kMoreToCome)
                    ? "after a backward() with BackwardOptions::more: call it without, for the "
                      "last loss of the micro-batch"
                    : "without backward(): call backward(loss) for every micro-batch; where no "
                      "more will come, end the step with Engine::flush() on every rank");
  if (!e.complete_here()) {
    e.phase.enter(Phase::kAccumulating);
    return false;
  }
  e.check_no_scope("step()");
  e.end.sum({});
  e.end.announce({Act::Kind::kFinish, e.base_rate});
  const bool any = e.end.agreement().micro_batches > 0;
  e.end.finish();
  return any;
}

bool EngineBase::flush() {
  EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(!e.phase.is(Phase::kBackwardDone, Phase::kMoreToCome) &&
                    !(e.phase.is(Phase::kSummed) && e.phase.done() > 0),
                "flush() was called between backward() and step(): call step() first");
  e.check_no_scope("flush()");
  e.end.sum({});
  e.end.announce({Act::Kind::kFinish, e.base_rate});
  return e.end.finish();
}

void EngineBase::drop() {
  EngineParts& e = parts();
  e.check_alive();
  e.check_no_scope("drop()");
  e.end.sum_and_ask({Act::Kind::kDrop, 0});
  e.end.abandon();
}

void EngineBase::give_up(const std::string& reason) {
  detail::give_up_shared(parts(), reason);
}

void EngineBase::join() {
  EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(e.phase.is(Phase::kBetweenSteps, Phase::kGathered), "join()", e.in_the_middle());
  e.check_no_scope("join()");
  while (true) {
    e.end.sum({.joined = true});
    if (e.end.agreement().all_joined) {
      e.end.drop();
      return;
    }
    if (e.end.follow()) {  // the ranks that have data decide what happens with the gradients
      e.end.finish();
    } else {
      e.end.abandon();
    }
  }
}

void EngineBase::deal(const std::vector<std::int64_t>& micro_batches) {
  EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(e.phase.is(Phase::kBetweenSteps, Phase::kGathered), "deal()", e.in_the_middle());
  check_same_on_all_ranks(
      *e.ranks,
      "what deal() was given",
      {detail::listed_or_none(micro_batches)},
      "give every rank the same numbers, such as those that one rank measured and broadcast");
  for (const std::int64_t count : micro_batches) {
    TRIREME_CHECK(count >= 0, "deal(): a rank cannot compute ", count, " micro-batches");
  }
  const MicroBatches dealt(micro_batches);
  TRIREME_CHECK(
      micro_batches.size() == e.dealt.ranks() && dealt.total() > 0,
      "deal() needs a number for each of the {} ranks, not all 0; found {} that add up to {}",
      {e.dealt.ranks(), micro_batches.size(), dealt.total()});
  // Groups are of consecutive micro-batches, and of consecutive ranks: those must be the same.
  TRIREME_CHECK(dealt.dealt_in_turn() || e.ranks->sum_group() == 1,
                "deal(): with sum_group {} micro-batches are dealt to the ranks in turn; leave it "
                "at 1 to deal them differently",
                {e.ranks->sum_group()});
  const auto& compress = e.options.compress;
  TRIREME_CHECK(
      !compress || !compress->format().feedback ||
          (dealt.dealt_in_turn() && dealt.total() == e.dealt.total()),
      "deal(): compressor {} keeps what it leaves out by the number of a micro-batch: leave "
      "them at {}, dealt in turn, or use one without feedback",
      {compress ? compress->format().name : "", e.dealt.total()});
  const std::int64_t rounds = e.rounds_of(dealt);
  TRIREME_CHECK(rounds == 1 || !e.plan.ownership.by_machine(),
                "deal(): with EngineOptions::shard_group every rank sums once in a step, found ",
                rounds,
                " rounds: use SumOrder::kLocalFirst");
  e.gradients->set_rounds(rounds);  // may find no memory: nothing has changed then
  e.dealt = dealt;
}

namespace {

// What asks for the sums comes after the last backward of a step.
void check_asks(const EngineParts& e, const char* what) {
  TRIREME_CHECK(e.phase.is(Phase::kBackwardDone, Phase::kSummed) || e.own_micro_batches() == 0,
                what,
                " was called without backward(): call it between the last backward() of a step and "
                "step()");
  e.check_no_scope(what);
}

}  // namespace

double EngineBase::clip_grad_norm(double max_norm) {
  EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(max_norm > 0, "clip_grad_norm: the bound must be positive, found ", max_norm);
  check_asks(e, "clip_grad_norm()");
  if (!e.complete_here()) {
    return 0;
  }
  e.end.sum_and_ask({Act::Kind::kClip, max_norm});
  return e.end.clip(max_norm, *e.ranks);
}

namespace {

std::size_t asked_parameter(const EngineParts& e, const std::string& name, const char* what) {
  e.check_alive();
  check_asks(e, what);
  TRIREME_CHECK(e.complete_here(),
                "{}: micro-batch {} of {} is not the step's last one: the gradient is not complete",
                {what, e.phase.done(), e.own_micro_batches()});
  const std::size_t parameter = e.unchanged->parameter_named(name);
  TRIREME_CHECK(
      e.plan.parameters[parameter].trainable, "parameter ", name, " is frozen: it has no gradient");
  return parameter;
}

}  // namespace

at::Tensor EngineBase::grad(const std::string& name) {
  EngineParts& e = parts();
  const std::size_t parameter = asked_parameter(e, name, "grad()");
  e.end.sum_and_ask({Act::Kind::kGradient, static_cast<double>(parameter)});
  const at::Tensor gradient = e.end.gradient(parameter);
  return gradient.defined() ? gradient.to(torch_device_of(e.plan.device)) : gradient;
}

void EngineBase::set_grad(const std::string& name, const at::Tensor& gradient) {
  EngineParts& e = parts();
  const std::size_t parameter = asked_parameter(e, name, "set_grad()");
  e.end.sum_and_ask({Act::Kind::kSetGradient, static_cast<double>(parameter)});
  e.end.set_gradient(parameter, gradient);
}

at::Tensor EngineBase::average(const std::string& name) {
  EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(e.options.ema_decay > 0,
                "average(): no moving average is kept: set EngineOptions::ema_decay");
  const std::size_t parameter = e.unchanged->parameter_named(name);
  TRIREME_CHECK(e.plan.parameters[parameter].trainable,
                "parameter {} is frozen: it has no moving average",
                {name});
  return e.optimizer->average(parameter).to(torch_device_of(e.plan.device));
}

void EngineBase::check_replicas() {
  EngineParts& e = parts();
  e.check_between_steps("check_replicas()");
  const auto line = [](const std::string& name, const at::Tensor& tensor) {
    const at::Tensor values = tensor.cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(values.data_ptr()), values.nbytes());
    return detail::concat(name, " with the hash ", std::hash<std::string_view>()(bytes));
  };
  std::vector<std::string> lines;
  for (const detail::Parameter& parameter : e.plan.parameters) {
    if (e.options.zero < 3) {
      lines.push_back(line("parameter " + parameter.name, parameter.tensor));
    }
  }
  for (const auto& buffer : e.model->named_buffers()) {
    if (e.options.broadcast_buffers) {
      lines.push_back(line("buffer " + buffer.key(), buffer.value()));
    }
  }
  check_same_on_all_ranks(
      *e.ranks,
      "the model",
      lines,
      "somebody has written to it past the engine, memory has failed, or buffers have changed "
      "since "
      "the last step (a forward of running statistics without one): load a checkpoint, and change "
      "values inside engine.gathered() only");
}

void EngineBase::unwrap() {
  EngineParts& e = parts();
  TRIREME_CHECK(!e.phase.is(Phase::kUnwrapped), "this engine has given its model back already");
  e.check_no_scope("unwrap()");
  TRIREME_CHECK(
      detail::StepPhase::follows(Phase::kUnwrapped, e.phase.now()), "unwrap()", e.in_the_middle());
  if (e.update) {
    // Units that were updated before may still be on their way between the ranks.
    try {
      e.update->finish();
    } catch (const Error& error) {
      log(LogLevel::kDebug, detail::concat("unwrap() after an update that failed: ", error.what()));
    }
  }
  const detail::Unwatched guard;
  for (std::size_t i = 0; i < e.plan.parameters.size(); ++i) {
    e.plan.parameters[i].tensor.set_data(e.whole(i));
  }
  e.hooks.reset();
  e.phase.enter(Phase::kUnwrapped);
  e.pulse.reset();
  e.ranks->barrier().wait();
}

void EngineBase::set_learning_rate(double base) {
  EngineParts& e = parts();
  TRIREME_CHECK(std::isfinite(base) && base >= 0,
                "set_learning_rate: expected a number of 0 or more, found ",
                base);
  // A rate that the others have not heard of could be this rank's alone.
  TRIREME_CHECK(
      !e.phase.is(Phase::kSummed) && !(e.phase.is(Phase::kBackwardDone) && e.complete_here()),
      "set_learning_rate() was called between the last backward() of a step and step(), "
      "when the ranks have compared their rates: call it before that backward(), or "
      "after step()");
  e.base_rate = base;
}

std::int64_t EngineBase::local_micro_batches() const {
  return parts().own_micro_batches();
}
std::int64_t EngineBase::micro_batch(std::int64_t k) const {
  return parts().dealt.number(parts().ranks->rank(), k);
}
std::int64_t EngineBase::micro_batches() const {
  return parts().dealt.total();
}
std::int64_t EngineBase::steps() const {
  return parts().steps;
}
double EngineBase::learning_rate() const {
  return parts().checked_rate();
}
double EngineBase::gradient_norm() const {
  return parts().norm;
}
double EngineBase::loss_scale() const {
  return parts().scaler ? parts().scaler->scale() : 1;
}
std::int64_t EngineBase::skipped_steps() const {
  return parts().scaler ? parts().scaler->state().skipped : 0;
}
SparseUse EngineBase::sparse() const {
  return parts().sparse_use;
}
OffloadUse EngineBase::offload() const {
  return parts().optimizer->offload();
}
CompressionUse EngineBase::compression() const {
  CompressionUse use = parts().gradients->compression();
  use.weights = parts().memory->received();
  return use;
}
double EngineBase::pruned() {
  return parts().pruner ? parts().pruner->fraction() : 0;
}
MemoryUse EngineBase::memory() const {
  return parts().ledger->use();
}
Communicator& EngineBase::ranks() const {
  return *parts().ranks;
}
const EngineOptions& EngineBase::options() const {
  return parts().options;
}
std::vector<std::string> EngineBase::frozen() const {
  std::vector<std::string> names;
  for (const detail::Parameter& parameter : parts().plan.parameters) {
    if (!parameter.trainable) {
      names.push_back(parameter.name);
    }
  }
  return names;
}

}  // namespace trireme
