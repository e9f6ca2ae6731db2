#include "trireme/average/phased_engine.h"

#include <algorithm>

#include "average/state_move.h"
#include "average/sync_phases.h"
#include "parallel/engine/elastic_check.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

std::shared_ptr<Communicator> present(std::shared_ptr<Communicator> world) {
  TRIREME_CHECK(world, "PhasedEngine: the world is a null pointer: pass what init() returned");
  return world;
}

}  // namespace

using detail::is_exact;
using detail::PhaseProgress;
using detail::StateCopy;

class PhasedEngineBase::Impl {
 public:
  Impl(std::shared_ptr<torch::nn::Module> model,
       const Optimizer& optimizer,
       const Phased& options,
       std::shared_ptr<Communicator> world);

  void end_step();
  void enter_next_phase();
  void enter(const SyncMode& to);
  std::string progress() const;
  void restore(const std::function<void(const StateView& into)>& fill, const std::string& progress);

  EngineBase& engine() const {
    TRIREME_CHECK(engine_ != nullptr,
                  "PhasedEngine: there is no engine since one could not be built for the next "
                  "phase: its error says why");
    return *engine_;
  }
  Averaging* averaging() const { return averaging_.get(); }
  Resumable& now() const { return averaging_ ? static_cast<Resumable&>(*averaging_) : engine(); }
  const SyncMode& mode() const { return mode_; }
  const std::vector<SyncPhase>& entered() const { return entered_; }
  const Replicas& replicas() const { return replicas_; }
  std::int64_t steps() const { return steps_; }
  AveragingUse averaging_use() const;
  CompressionUse compression() const;

 private:
  void build(const SyncMode& mode);
  void take_apart();
  void begin_replicas(const SyncMode& mode);
  void begin_exact();
  void note(const SyncMode& mode);

  const std::shared_ptr<torch::nn::Module> model_;
  const std::unique_ptr<Optimizer> optimizer_;
  const Phased options_;
  const std::shared_ptr<Communicator> world_;
  const Replicas replicas_;

  SyncPhase planned_;  // of options_.phases, the one that began last
  SyncMode mode_;
  std::unique_ptr<EngineBase> engine_;
  std::unique_ptr<Averaging> averaging_;
  std::int64_t steps_ = 0;
  std::vector<SyncPhase> entered_;
  // Of engines and replicas that are gone.
  AveragingUse averaging_use_;
  CompressionUse compression_;
};

PhasedEngineBase::Impl::Impl(std::shared_ptr<torch::nn::Module> model,
                             const Optimizer& optimizer,
                             const Phased& options,
                             std::shared_ptr<Communicator> world)
    : model_(std::move(model)),
      optimizer_(optimizer.clone()),
      options_(options),
      world_(present(std::move(world))),
      replicas_(world_, options.replicas) {
  detail::check_elastic("PhasedEngine");
  check_same_on_all_ranks(*world_,
                          "the list of phases",
                          {detail::description_of(options_)},
                          "give every rank the same phases and replicas");
  on_all_ranks(*world_, [&] { detail::check_phases(options_, replicas_); });
  planned_ = options_.phases.front();
  build(planned_.mode);
  note(planned_.mode);
}

void PhasedEngineBase::Impl::note(const SyncMode& mode) {
  if (!entered_.empty() && entered_.back().from == steps_) {
    entered_.pop_back();
  }
  entered_.push_back({steps_, mode});
}

void PhasedEngineBase::Impl::take_apart() {
  if (averaging_) {
    averaging_use_ = averaging_use();
    averaging_.reset();
  }
  if (engine_) {
    compression_ = compression();
    engine_->unwrap();
    engine_.reset();
  }
}

void PhasedEngineBase::Impl::build(const SyncMode& mode) {
  take_apart();
  EngineOptions options = options_.engine;
  if (is_exact(mode)) {
    engine_ = std::make_unique<EngineBase>(model_, *optimizer_, options, world_);
  } else {
    options.micro_batches /= replicas_.count();
    engine_ = std::make_unique<EngineBase>(model_, *optimizer_, options, replicas_.mine());
    averaging_ = std::make_unique<Averaging>(*engine_,
                                             replicas_,
                                             detail::averaging_mode(mode),
                                             AveragingOptions{.states = options_.states});
  }
  mode_ = mode;
}

// Note [between phases]
// What an engine of all ranks has divided among them, every replica needs whole, and the other way
// round: so the state goes from rank to rank in memory (state_move.h), as a checkpoint would
// through files. What a rank has already, it copies.
void PhasedEngineBase::Impl::begin_replicas(const SyncMode& mode) {
  StateCopy copy;
  const std::string progress = engine().progress();
  engine_->restore([&](const StateView& has) { copy = StateCopy::of(has); }, progress);
  build(mode);
  averaging_->restore([&](const StateView& into) { detail::move_state(copy.view, into, *world_); },
                      progress);
}

void PhasedEngineBase::Impl::begin_exact() {
  averaging_->join();
  StateCopy copy;
  engine().restore([&](const StateView& has) { copy = StateCopy::of(has); }, engine_->progress());
  // Replicas may have skipped other steps (float16): the first one's counts and scale hold.
  const std::string progress =
      all_texts(*world_, world_->rank() == 0 ? engine_->progress() : "").front();
  build(Exact{});
  engine_->restore([&](const StateView& into) { detail::move_state(copy.view, into, *world_); },
                   progress);
}

void PhasedEngineBase::Impl::enter(const SyncMode& to) {
  check_same_on_all_ranks(
      *world_, "the phase", {to_text(to)}, "enter the same phase on every rank");
  if (to_text(mode_) == to_text(to) && detail::same_but_for_steps(mode_, to)) {
    return;
  }
  if (!is_exact(to)) {
    detail::check_phases({.phases = {{0, to}}, .engine = options_.engine}, replicas_);
  }
  if (!is_exact(to) && detail::same_but_for_steps(mode_, to)) {
    averaging_->set_steps(
        std::visit([](const auto& each) { return each.steps; }, detail::averaging_mode(to)));
    mode_ = to;
  } else {
    if (!is_exact(mode_)) {
      begin_exact();
    }
    if (!is_exact(to)) {
      begin_replicas(to);
    }
  }
  note(to);
}

void PhasedEngineBase::Impl::end_step() {
  ++steps_;
  if (averaging_) {
    averaging_->step();
  }
}

void PhasedEngineBase::Impl::enter_next_phase() {
  const SyncPhase& phase = detail::phase_at(options_.phases, steps_);
  if (phase.from == steps_) {
    enter(phase.mode);
    planned_ = phase;
  }
}

std::string PhasedEngineBase::Impl::progress() const {
  return PhaseProgress{.steps = steps_,
                       .entered = entered_,
                       .averagings = averaging_use_.averagings,
                       .planned = planned_}
      .added_to(now().progress());
}

void PhasedEngineBase::Impl::restore(const std::function<void(const StateView& into)>& fill,
                                     const std::string& progress) {
  if (progress.empty()) {
    now().restore(fill);
    return;
  }
  const PhaseProgress saved = PhaseProgress::parse(progress, options_.phases);
  // In the form in which it was saved; from there to the phase of its step as training goes.
  const bool of_replicas = !saved.averaging.empty();
  if (of_replicas == is_exact(mode_) ||
      (of_replicas && !detail::same_but_for_steps(mode_, saved.entered.back().mode))) {
    build(of_replicas ? saved.entered.back().mode : SyncMode(Exact{}));
  }
  now().restore(fill, progress);
  if (of_replicas) {
    mode_ = saved.entered.back().mode;
  }
  steps_ = saved.steps;
  entered_ = saved.entered;
  averaging_use_.averagings = saved.averagings;
  const SyncPhase& phase = detail::phase_at(options_.phases, steps_);
  if (entered_.empty()) {
    entered_ = {{0, Exact{}}};
  }
  if (of_replicas) {
    averaging_->set_steps(
        std::visit([](const auto& each) { return each.steps; }, detail::averaging_mode(mode_)));
  }
  // What a loop has entered since stays until the next phase begins; a plan that is another one now
  // is followed.
  const bool as_planned = saved.planned && saved.planned->from == phase.from &&
                          to_text(saved.planned->mode) == to_text(phase.mode) &&
                          detail::same_but_for_steps(saved.planned->mode, phase.mode);
  if (!as_planned) {
    enter(phase.mode);
  }
  planned_ = phase;
}

AveragingUse PhasedEngineBase::Impl::averaging_use() const {
  AveragingUse use = averaging_use_;
  if (averaging_) {
    use.averagings += averaging_->use().averagings;
    use.sent_bytes += averaging_->use().sent_bytes;
    use.seconds += averaging_->use().seconds;
  }
  return use;
}

CompressionUse PhasedEngineBase::Impl::compression() const {
  CompressionUse use = engine().compression();
  use.sent_bytes += compression_.sent_bytes;
  use.exact_bytes += compression_.exact_bytes;
  use.seconds += compression_.seconds;
  use.weights.received_bytes += compression_.weights.received_bytes;
  use.weights.exact_bytes += compression_.weights.exact_bytes;
  if (use.check.step == 0) {
    use.check = compression_.check;
  }
  return use;
}

PhasedEngineBase::PhasedEngineBase(std::shared_ptr<torch::nn::Module> model,
                                   const Optimizer& optimizer,
                                   const Phased& options,
                                   std::shared_ptr<Communicator> world)
    : impl_(std::make_unique<Impl>(std::move(model), optimizer, options, std::move(world))) {}
PhasedEngineBase::~PhasedEngineBase() = default;

void PhasedEngineBase::backward(const at::Tensor& loss, const BackwardOptions& how) {
  impl_->engine().backward(loss, how);
}
bool PhasedEngineBase::step() {
  if (!impl_->engine().step()) {
    return false;
  }
  end_step();
  enter_next_phase();
  return true;
}
void PhasedEngineBase::end_step() {
  impl_->end_step();
}
void PhasedEngineBase::enter_next_phase() {
  impl_->enter_next_phase();
}
void PhasedEngineBase::enter(const SyncMode& mode) {
  impl_->enter(mode);
}
const SyncMode& PhasedEngineBase::mode() const {
  return impl_->mode();
}
const std::vector<SyncPhase>& PhasedEngineBase::entered() const {
  return impl_->entered();
}
EngineBase& PhasedEngineBase::engine() const {
  return impl_->engine();
}
Averaging* PhasedEngineBase::averaging() const {
  return impl_->averaging();
}
const Replicas& PhasedEngineBase::replicas() const {
  return impl_->replicas();
}
std::int64_t PhasedEngineBase::local_micro_batches() const {
  return impl_->engine().local_micro_batches();
}
std::int64_t PhasedEngineBase::micro_batch(std::int64_t k) const {
  const EngineBase& engine = impl_->engine();
  const int part = impl_->averaging() != nullptr ? impl_->replicas().number() : 0;
  return part * engine.micro_batches() + engine.micro_batch(k);
}
void PhasedEngineBase::with_mean(const std::function<void()>& body) {
  if (impl_->averaging() != nullptr) {
    impl_->averaging()->with_mean(body);
  } else {
    body();
  }
}
EngineState PhasedEngineBase::state() {
  return impl_->now().state();
}
EngineState PhasedEngineBase::state_to_keep() {
  return impl_->averaging() != nullptr ? impl_->averaging()->state_to_keep() : impl_->now().state();
}
std::string PhasedEngineBase::progress() const {
  return impl_->progress();
}
void PhasedEngineBase::restore(const std::function<void(const StateView& into)>& fill,
                               const std::string& progress) {
  impl_->restore(fill, progress);
}
std::int64_t PhasedEngineBase::steps() const {
  return impl_->steps();
}
Communicator& PhasedEngineBase::ranks() const {
  return impl_->replicas().world();
}
AveragingUse PhasedEngineBase::averaging_use() const {
  return impl_->averaging_use();
}
CompressionUse PhasedEngineBase::compression() const {
  return impl_->compression();
}

}  // namespace trireme
