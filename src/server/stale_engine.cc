#include "trireme/server/stale_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/from_blob.h>

#include "parallel/engine/options_check.h"
#include "parallel/engine/run_norms.h"
#include "parallel/memory/runs.h"
#include "server/stale_impl.h"
#include "server/stale_options.h"
#include "trireme/comm/tell.h"
#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/optim/square_sum.h"
#include "trireme/tensor/span.h"

namespace trireme {

using detail::concat;
using detail::EngineParts;
using detail::index;
using detail::Phase;
using detail::Service;
using detail::Shard;

namespace {

// This rank's own gradients, in place.
void scale(const ConstSpan& run, double factor) {
  const at::NoGradGuard no_grad;
  at::from_blob(const_cast<std::byte*>(run.bytes()),
                {run.numel()},
                at::TensorOptions().dtype(scalar_type_of(run.dtype())))
      .mul_(factor);
}

}  // namespace

StaleEngineBase::Impl::Impl(std::shared_ptr<torch::nn::Module> model,
                            const Optimizer& optimizer,
                            const Stale& stale,
                            std::shared_ptr<Communicator> ranks,
                            std::shared_ptr<World> world)
    : stale_(stale),
      ranks_(std::move(ranks)),
      world_(std::move(world)),
      workers_(ranks_ ? ranks_->size() - stale.servers : 0) {
  TRIREME_CHECK(ranks_, "StaleEngine: the world is a null pointer: pass what init() returned");
  on_all_ranks(*ranks_, [&] { detail::check_stale(stale_, optimizer, *ranks_, world_.get()); });
  run_ = detail::settings_of(detail::worker_options(stale_, workers_), optimizer);
  for (std::string& line : detail::stale_lines(stale_, *ranks_)) {
    run_.push_back(std::move(line));
  }
  std::vector<std::string> same = run_;
  same.push_back(concat("replicas ", stale_.replicas));  // which change no bit
  check_same_on_all_ranks(*ranks_,
                          "what a stale engine was built with",
                          same,
                          "give every rank the same options, optimizer and number of threads");
  const std::shared_ptr<Communicator> alone = ranks_->split(ranks_->rank(), 0, /*sum_group=*/1);
  on_all_ranks(*ranks_, [&] {
    worker_ = std::make_unique<detail::LoneWorker>(
        std::move(model), optimizer, detail::worker_options(stale_, workers_), alone);
    TRIREME_CHECK(parts().plan.device.is_host(),
                  "StaleEngine: expected a model on the CPU, found one on a GPU: use Engine there");
    for (const detail::Parameter& parameter : parts().plan.parameters) {
      TRIREME_CHECK(!parameter.bound,
                    "StaleEngine: the rows of parameter {} have a largest norm (max_norm), to "
                    "which no owner scales them: leave it out, or use Engine",
                    {parameter.name});
      TRIREME_CHECK(!parameter.sparse || stale_.replicas == 0,
                    "Stale::replicas: the gradients of parameter {} are rows, of which owners have "
                    "no whole versions: make them dense, or save checkpoints",
                    {parameter.name});
    }
  });
  check_same_model(*parts().model, parts().plan.parameters, *ranks_);
  take_over(optimizer);
}

void StaleEngineBase::Impl::take_over(const Optimizer& optimizer) {
  EngineParts& e = parts();
  owner_plan_ = e.plan;
  owner_options_ = detail::owner_options(e.options, workers_, ranks_->size());
  const auto ownership_at = [&](int stage) {
    EngineOptions options = owner_options_;
    options.zero = stage;
    const detail::RankGroup all = detail::RankGroup::of(*ranks_);
    return detail::Ownership(options, all, all, e.plan.units, e.plan.parameters);
  };
  owner_plan_.ownership = ownership_at(2);
  Service::Places places{.workers = workers_, .owners = {}};
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    if (!detail::OwnedParts(owner_plan_, rank, detail::Content::kWeights).empty()) {
      places.owners.push_back(rank);
    }
  }
  service_ = std::make_unique<Service>(*ranks_, owner_plan_, places);
  shard_ = std::make_unique<Shard>(
      optimizer,
      detail::PartContext{*ranks_, *ranks_, owner_plan_, owner_options_, *e.ledger, e.alive},
      workers_,
      stale_,
      [this](int worker, auto weights) { service_->answer(worker, std::move(weights)); });
  // Rank 0's values, at full precision: of this rank's part, and then of all.
  for (std::size_t u = 0; u < e.plan.units.size(); ++u) {
    const Span whole = e.optimizer->memory().weights(u);
    ranks_->broadcast(whole, 0).wait();
    detail::OptimizerMemory& memory = shard_->optimizer()->memory();
    const Span own = memory.weights(u);
    device::host().copy(own, detail::part_of(whole, owner_plan_.ownership.mine(u)));
    memory.round_masters(u);
    memory.take_averages(u);
  }
  e.optimizer = shard_->give_optimizer();
  saved_ownership_ = ownership_at(1);
  e.owners = ranks_.get();
  an_owner_ = places.owners.empty() ? 0 : places.owners.back();
  begin_here();
  on_all_ranks(*ranks_, [&] {
    if (!stale_.record.empty() && owns()) {
      shard_->record(stale_.record, run_);
    }
  });
  follow_from_here();
  go_on_from_kept();
  service_->start(*shard_);
}

// All owners end with the same step: each may have recorded more of some ranks.
void StaleEngineBase::Impl::follow_from_here() {
  if (stale_.replay.empty()) {
    return;
  }
  const std::int64_t from = parts().steps;
  detail::Arrivals mine;
  on_all_ranks(*ranks_, [&] {
    if (owns()) {
      mine = detail::Arrivals::read(stale_.replay, ranks_->rank(), run_, from, workers_);
    }
  });
  std::vector<std::int64_t> steps = {mine.steps};
  ranks_->all_reduce(steps, ReduceOp::kMin).wait();
  on_all_ranks(*ranks_, [&] {
    if (owns()) {
      detail::check_follows(mine, stale_.replay, from, steps[0]);
    }
  });
  std::vector<std::int64_t> cut = {mine.end_with(steps[0]) ? 0 : 1};
  ranks_->all_reduce(cut, ReduceOp::kMax).wait();
  std::vector<std::int64_t> count = {static_cast<std::int64_t>(mine.beginnings.size())};
  ranks_->broadcast(count, an_owner_).wait();
  mine.beginnings.resize(static_cast<std::size_t>(count[0]));
  ranks_->broadcast(mine.beginnings, an_owner_).wait();
  replayed_ = Replayed{steps[0], cut[0] != 0, std::move(mine.beginnings)};
  on_all_ranks(*ranks_, [&] {
    if (owns()) {
      shard_->follow(std::move(mine.acts));
    }
  });
}

void StaleEngineBase::Impl::check_computes(const char* what) const {
  TRIREME_CHECK(computes(),
                "{}: rank {} is a server (Stale::servers), which computes nothing: call finish()",
                {what, ranks_->rank()});
  TRIREME_CHECK(!finished_, "{} was called after finish(): build another engine", {what});
}

bool StaleEngineBase::Impl::step() {
  check_computes("step()");
  EngineParts& e = parts();
  e.check_alive();
  TRIREME_CHECK(e.phase.is(Phase::kBackwardDone),
                "step() was called without backward(): call backward(loss) for every micro-batch");
  if (!e.complete_here()) {
    e.phase.enter(Phase::kAccumulating);
    return false;
  }
  e.check_no_scope("step()");
  e.end.sum({});
  const double rate = e.checked_rate();
  const bool takes = prepare_gradients();
  const std::vector<bool>& used = e.end.agreement().used;
  std::vector<std::uint8_t> present(used.size(), 0);
  for (std::size_t p = 0; p < used.size(); ++p) {
    present[p] = takes && used[p] ? 1 : 0;
  }
  detail::drill_step(PulsePhase::kUpdate, e.steps, ranks_->rank(), ranks_->size());
  service_->push({.clock = e.steps,
                  .micro_batches = takes ? e.end.agreement().micro_batches : 0,
                  .rate = rate},
                 present,
                 e.gradients->sums());
  e.end.drop();
  ++e.steps;
  detail::pulse().step.store(e.steps, std::memory_order_relaxed);
  write_parameters([&] {
    service_->pull([&](const detail::OwnedPart& part, const ConstSpan& values) {
      e.memory->write(part.unit, part.range, values);
    });
  });
  return true;
}

void StaleEngineBase::Impl::refuse_gradients(const std::string& what) {
  parts().end.drop();
  throw GradientError(
      ranks_->rank(),
      concat("{} is not finite on rank {} in step {}: nothing was sent, and the step's gradients "
             "are dropped; look at the data, the loss and the learning rate, or clip",
             {what, ranks_->rank(), parts().steps + 1}));
}

// Note [scaled gradients]
// Owners add up the gradients of ranks that have a loss scale and a norm each: both are taken out
// before they are sent. Where there is neither, no bit changes.
bool StaleEngineBase::Impl::prepare_gradients() {
  EngineParts& e = parts();
  const detail::Agreement& own = e.end.agreement();
  const bool checks = e.options.check_gradients;
  bool overflow = own.bad_rank >= 0;
  if (overflow && checks && (!e.scaler || e.scaler->at_least())) {
    refuse_gradients(
        concat("the gradient of parameter ", e.plan.parameters[own.bad_parameter].name));
  }
  const double unscale = e.scaler ? e.scaler->unscale() : 1;
  double factor = unscale;
  if (e.options.clip_norm > 0 && !(overflow && e.scaler)) {
    e.norm = clip({.divisor = static_cast<double>(own.micro_batches), .unscale = unscale});
    overflow |= !std::isfinite(e.norm);
    if (!std::isfinite(e.norm) && !e.scaler && checks) {
      refuse_gradients("the norm of the gradient");
    }
    factor *= clip_factor(e.norm, e.options.clip_norm);
  }
  const bool takes = !e.scaler || e.scaler->update(overflow);
  for (std::size_t u = 0; u < e.plan.units.size() && takes && factor != 1; ++u) {
    if (e.plan.units[u].trainable && e.plan.units[u].sparse) {
      scale(e.gradients->sums().rows(u).sums_in({0, e.plan.units[u].layout.total_numel()}), factor);
    } else if (e.plan.units[u].trainable) {
      const Span run = e.gradients->sums().at(u, {0, e.plan.units[u].layout.total_numel()});
      scale(run, factor);
    }
  }
  return takes;
}

double StaleEngineBase::Impl::clip(const Scaling& scaling) {
  const EngineParts& e = parts();
  std::vector<ConstSpan> runs;
  std::int64_t count = 0;
  for (std::size_t p = 0; p < e.plan.parameters.size(); ++p) {
    if (e.plan.parameters[p].trainable && e.end.agreement().used[p]) {
      const std::size_t u = e.plan.places[p].unit;
      runs.push_back(e.plan.units[u].sparse
                         ? e.gradients->sums().rows(u).sums_in(e.plan.range_of(p))
                         : ConstSpan(e.gradients->sums().at(u, e.plan.range_of(p))));
      count += e.plan.parameters[p].numel;
    }
  }
  detail::RunNorms norms(e.plan.device, scaling);
  const double largest = norms.largest(runs);
  if (count == 0 || !std::isfinite(largest)) {
    return detail::RunNorms::any_nan(runs) ? std::numeric_limits<double>::quiet_NaN() : largest;
  }
  return norms.squares(runs, SquareQuanta::of(largest, count)).norm();
}

// Nobody computes meanwhile: these are this rank's own.
void StaleEngineBase::Impl::write_parameters(const std::function<void()>& body) {
  EngineParts& e = parts();
  detail::Update update(e.plan, *e.memory);
  body();
  for (std::size_t p = 0; p < e.plan.parameters.size(); ++p) {
    update.changed(p);
  }
  update.finish();
}

void StaleEngineBase::Impl::finish() {
  if (finished_) {
    return;
  }
  if (computes()) {
    parts().check_between_steps("finish()");
    service_->say_goodbye();
  }
  finished_ = true;
  service_->finish();
  ranks_->barrier().wait(kForever);  // others may have more data
  read_newest();
}

StaleEngineBase::StaleEngineBase(std::shared_ptr<torch::nn::Module> model,
                                 const Optimizer& optimizer,
                                 const Stale& stale,
                                 std::shared_ptr<Communicator> ranks)
    : impl_(std::make_unique<Impl>(
          std::move(model), optimizer, stale, std::move(ranks), std::shared_ptr<World>())) {}
StaleEngineBase::StaleEngineBase(std::shared_ptr<torch::nn::Module> model,
                                 const Optimizer& optimizer,
                                 const Stale& stale,
                                 std::shared_ptr<World> world)
    : impl_(std::make_unique<Impl>(std::move(model), optimizer, stale, world, world)) {}
StaleEngineBase::~StaleEngineBase() = default;

bool StaleEngineBase::computes() const {
  return impl_->computes();
}
int StaleEngineBase::workers() const {
  return impl_->workers();
}
void StaleEngineBase::backward(const at::Tensor& loss) {
  impl_->check_computes("backward()");
  impl_->check_kept("backward()");
  impl_->worker().backward(loss);
}
bool StaleEngineBase::step() {
  return impl_->step();
}
void StaleEngineBase::finish() {
  impl_->finish();
}
void StaleEngineBase::with_newest(const std::function<void()>& body) {
  impl_->with_newest(body);
}
EngineState StaleEngineBase::state() {
  return impl_->state();
}
void StaleEngineBase::go_on_from_newest() {
  impl_->go_on_from_newest();
}
std::string StaleEngineBase::progress() const {
  return impl_->worker().progress();
}
void StaleEngineBase::restore(const std::function<void(const StateView& into)>& fill,
                              const std::string& progress) {
  impl_->restore(fill, progress);
}
void StaleEngineBase::keep(const Notes& notes) {
  impl_->keep(notes);
}
int StaleEngineBase::replicas() const {
  return impl_->replicas();
}
const std::optional<Notes>& StaleEngineBase::kept() const {
  return impl_->kept();
}
StaleUse StaleEngineBase::use() const {
  return impl_->use();
}
const std::optional<Replayed>& StaleEngineBase::replayed() const {
  return impl_->replayed();
}
MemoryReport StaleEngineBase::memory_report() const {
  return impl_->memory_report();
}
std::size_t StaleEngineBase::state_bytes() const {
  return impl_->state_bytes();
}
std::int64_t StaleEngineBase::sent_bytes() const {
  return impl_->sent_bytes();
}
std::int64_t StaleEngineBase::steps() const {
  return impl_->worker().steps();
}
Communicator& StaleEngineBase::ranks() const {
  return impl_->ranks();
}
EngineBase& StaleEngineBase::worker() const {
  return impl_->worker();
}

}  // namespace trireme
