#include "parallel/engine/step_end.h"

#include <cmath>

#include "parallel/engine/engine_parts.h"
#include "parallel/engine/step_refusals.h"
#include "parallel/memory/runs.h"
#include "parallel/model/broadcast.h"
#include "trireme/comm/tell.h"
#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/pulse.h"
#include "trireme/optim/square_sum.h"

namespace trireme::detail {

void StepEnd::sum(const Absence& absence) {
  if (parts_.phase.is(Phase::kSummed)) {
    return;
  }
  if (parts_.complete_here()) {
    while (leave_out_round(absence)) {
    }
  } else {
    // Those that have begun a step with it end theirs, too, where it is ended early.
    std::vector<EngineParts*> engines = engines_of(parts_);
    std::erase_if(engines, [this](EngineParts* e) {
      return e != &parts_ &&
             !e->phase.is(Phase::kAccumulating, Phase::kMoreToCome, Phase::kBackwardDone);
    });
    leave_out_rounds(engines, absence);
  }
  // Whoever gave up has told so for all engines that share its passes, and does not know which of
  // them the others end first.
  const std::vector<EngineParts*> engines = engines_of(parts_);
  if (engines.size() > 1 && parts_.gradients->given_up()) {
    leave_out_rounds(engines, absence);
    for (EngineParts* e : engines) {
      e->end.wait_for_sums();
    }
  } else {
    wait_for_sums();
  }
}

void StepEnd::wait_for_sums() {
  if (!parts_.phase.is(Phase::kSummed)) {
    agreement_ = parts_.gradients->finish();
    parts_.phase.enter(Phase::kSummed);
  }
}

bool StepEnd::leave_out_round(const Absence& absence) {
  const std::int64_t rounds = parts_.rounds_of(parts_.dealt);
  // With one communication per step, this rank's last backward was it.
  const bool one = parts_.context().one_communication();
  const bool all_here = parts_.own_micro_batches() > 0 && parts_.complete_here();
  const std::int64_t sent =
      (one ? (all_here ? 1 : 0) : parts_.phase.done()) + first_left_out_ + left_out_;
  if (parts_.phase.is(Phase::kSummed) || sent >= rounds) {
    return false;
  }
  // A process alone has its sums when the step ends, not in each round that it leaves out.
  take_no_part(absence, sent + 1 == rounds);
  ++left_out_;
  return true;
}

void StepEnd::leave_out_first_round() {
  // Once in a step, also where the backward pass that it came before has failed.
  if (!parts_.context().one_communication() && first_left_out_ == 0) {
    take_no_part({}, /*last=*/false);
    first_left_out_ = 1;
  }
}

void StepEnd::take_no_part(const Absence& absence, bool last) {
  parts_.gradients->begin_round(last, std::vector<bool>(parts_.plan.parameters.size(), false));
  parts_.gradients->end_round(
      {.joined = absence.joined, .given_up = absence.given_up, .rate = parts_.rate()});
}

// Note [leaving out rounds together]
// A rank tells of a round when it has heard of the one before. The ranks that go on with a backward
// of several engines do so for all of them in each pass: a rank that left out the rounds of one
// engine before those of the next would wait for a pass that waits for it.
void StepEnd::leave_out_rounds(const std::vector<EngineParts*>& engines, const Absence& absence) {
  for (bool any = true; any;) {
    any = false;
    for (EngineParts* e : engines) {
      any = e->end.leave_out_round(absence) || any;
    }
  }
}

void StepEnd::sum_and_ask(const Act& act) {
  sum({});
  if (agreement_.given_up_rank >= 0) {
    announce({Act::Kind::kFinish, parts_.base_rate});
    refuse_given_up("");
  }
  announce(act);
}

void StepEnd::announce(const Act& act) {
  detail::announce(act, agreement_, *parts_.ranks);
}

bool StepEnd::follow() {
  for (;;) {
    const Act act = next_act(agreement_, *parts_.ranks);
    switch (act.kind) {
      case Act::Kind::kClip:
        clip(act.value, *parts_.ranks);
        break;
      case Act::Kind::kGradient:
        gradient(static_cast<std::size_t>(act.value));
        break;
      case Act::Kind::kFinish:
        parts_.base_rate = act.value;
        return true;
      case Act::Kind::kSetGradient:
        try {
          set_gradient(static_cast<std::size_t>(act.value), {});
        } catch (const ConfigError&) {
          // Refused on all ranks, whose step goes on as it was.
        }
        break;
      case Act::Kind::kDrop:
        return false;
    }
  }
}

GradientTransform StepEnd::transform() const {
  const bool present = parts_.options.divisor == Divisor::kPresent;
  return {.divisor = static_cast<double>(present ? agreement_.micro_batches : parts_.dealt.total()),
          .unscale = parts_.scaler ? parts_.scaler->unscale() : 1,
          .clip_factor = clip_ ? clip_->factor : 1,
          .clip_value = parts_.options.clip_value};
}

ShardedOptimizer::Gradients StepEnd::gradients() const {
  return {parts_.gradients->sums(), agreement_.used};
}

// Note [clipping what is not finite]
// Somebody who has set check_gradients = false gets what torch.nn.utils.clip_grad_norm_ gives: with
// an infinite norm the factor is 0, with one that is not a number neither is any gradient. Finite
// gradients are never let through unbounded.
double StepEnd::clip(double max_norm, Communicator& compared) {
  const GradientTransform scaling = transform();
  const auto measured = parts_.optimizer->norm(
      gradients(), {.divisor = scaling.divisor, .unscale = scaling.unscale}, max_norm, compared);
  if (measured.least_bound != measured.most_bound) {
    refuse(different_bounds(max_norm, measured, parts_.ranks->rank(), parts_.steps + 1));
  }
  parts_.norm = measured.norm;
  clip_ = {.factor = clip_factor(measured.norm, max_norm), .finite = std::isfinite(measured.norm)};
  return measured.norm;
}

at::Tensor StepEnd::gradient(std::size_t parameter) {
  if (!agreement_.used[parameter]) {
    return {};
  }
  const ModelPlan& plan = parts_.plan;
  const Place& place = plan.places[parameter];
  // The ranges of the ranks, also where one rank holds more: it is the same.
  const Dtype dtype = plan.units[place.unit].sum_dtype();
  ConstSpan own(nullptr, 0, dtype);
  at::Tensor spread;  // of rows
  if (plan.units[place.unit].sparse) {
    const Range mine = intersection(plan.ownership.mine(place.unit), plan.range_of(parameter));
    spread = at::empty({mine.size()}, at::TensorOptions().dtype(scalar_type_of(dtype)));
    parts_.gradients->sums().rows(place.unit).copy(mine, run_of(spread));
    own = run_of(spread);
  }
  for (const Piece& piece : plan.units[place.unit].layout.pieces(plan.ownership.mine(place.unit))) {
    if (piece.parameter == place.index && !spread.defined()) {
      own = parts_.gradients->sums().of_owner(place.unit, piece);
    }
  }
  at::Tensor whole = parts_.optimizer->gather(parameter, own);
  const GradientTransform scaling = transform();
  const at::NoGradGuard no_grad;
  whole.div_(scaling.divisor).mul_(scaling.unscale);
  if (scaling.clip_factor != 1) {
    whole.mul_(scaling.clip_factor);
  }
  return whole;
}

void StepEnd::set_gradient(std::size_t parameter, const at::Tensor& gradient) {
  const ModelPlan& plan = parts_.plan;
  const Parameter& p = plan.parameters[parameter];
  const Unit& unit = plan.unit_of(parameter);
  const at::NoGradGuard no_grad;
  const at::Tensor values = at::empty_strided(
      p.sizes, p.strides, at::TensorOptions().dtype(scalar_type_of(unit.sum_dtype())));
  on_all_ranks(*parts_.ranks, [&] {
    TRIREME_CHECK(!unit.sparse,
                  "set_grad(): parameter {} has sparse gradients, which cannot be edited",
                  {p.name});
    TRIREME_CHECK(!clip_,
                  "set_grad(): the gradients of step {} are clipped already: edit parameter {} "
                  "before clip_grad_norm()",
                  {parts_.steps + 1, p.name});
    TRIREME_CHECK(gradient.defined() || parts_.ranks->rank() != agreement_.lead,
                  "set_grad(): parameter {} was given an undefined tensor on rank {}, whose values "
                  "count",
                  {p.name, agreement_.lead});
    if (gradient.defined()) {
      TRIREME_CHECK(gradient.sizes() == at::IntArrayRef(p.sizes),
                    "set_grad(): the gradient for parameter {} has other sizes than that",
                    {p.name});
      const GradientTransform scaling = transform();
      values.copy_(gradient);
      values.div_(scaling.unscale).mul_(scaling.divisor);  // a sum, which may overflow
      TRIREME_CHECK(!parts_.options.check_gradients || values.isfinite().all().item<bool>(),
                    "set_grad(): the gradient for parameter {} is not finite, or too large for {}",
                    {p.name, dtype_name(unit.sum_dtype())});
    }
  });
  broadcast_tensor(values, *parts_.ranks, agreement_.lead);
  parts_.gradients->set_sum(plan.places[parameter].unit, plan.range_of(parameter), run_of(values));
  agreement_.used[parameter] = true;
}

// A rank gives up all engines that share its backward passes. Where the others hear of it, from
// whichever engine, they end the steps of all of them, in the order that all ranks have.
void StepEnd::refuse_given_up(const std::string& reason) {
  const std::vector<EngineParts*> engines = engines_of(parts_);
  std::optional<StepGivenUp> own;
  for (EngineParts* e : engines) {
    if (e->end.agreement_.given_up_rank >= 0) {
      const StepGivenUp refusal = e->end.end_given_up(reason);
      if (e == &parts_) {
        own = refusal;
      }
    }
  }
  throw StepGivenUp(*own);
}

StepGivenUp StepEnd::end_given_up(const std::string& reason) {
  const int rank = agreement_.given_up_rank;
  const std::string text = all_texts(*parts_.ranks, reason)[index(rank)];
  forget(StepOutcome::kGivenUp);
  parts_.phase.enter(Phase::kBetweenSteps);
  return {rank, concat("rank ", rank, " gave up step ", parts_.steps + 1, ": ", text)};
}

// What the ranks have told each other lets the step be taken.
void StepEnd::check_agreement(const std::string& given_up) {
  if (agreement_.given_up_rank >= 0) {
    refuse_given_up(given_up);
  }
  if (parts_.options.check_gradients && agreement_.bad_rank >= 0 && !parts_.scaler) {
    refuse(not_finite(agreement_, bad_parameter(), parts_.steps + 1));
  }
  if (agreement_.other_rate_rank >= 0) {
    refuse(different_rates(agreement_, parts_.steps + 1));
  }
}

const std::string& StepEnd::bad_parameter() const {
  return parts_.plan.parameters[agreement_.bad_parameter].name;
}

// Clips, where an option says so, and says whether gradients or their norm are not finite. Refuses
// where that cannot be skipped.
bool StepEnd::overflows() {
  const EngineOptions& options = parts_.options;
  LossScaler* scaler = parts_.scaler.get();
  bool overflow = agreement_.bad_rank >= 0;
  const bool skips = overflow && scaler != nullptr;  // there is nothing to clip
  if (options.clip_norm > 0 && !clip_ && !skips) {
    clip(options.clip_norm, *parts_.owners);  // an option: it was compared
  }
  if (clip_ && !clip_->finite && !overflow) {
    overflow = true;  // of a sum: no single gradient is to blame
    if (scaler == nullptr && options.check_gradients) {
      refuse(norm_not_finite(parts_.steps + 1));
    }
  }
  if (overflow && scaler != nullptr && scaler->at_least() && options.check_gradients) {
    refuse(overflow_at_least(agreement_, bad_parameter(), parts_.steps + 1, *scaler));
  }
  return overflow;
}

bool StepEnd::finish(const std::string& given_up) {
  check_agreement(given_up);
  if (agreement_.micro_batches == 0) {
    drop();  // nobody had data: no update, and the schedule does not move
    return false;
  }
  double rate = 0;
  try {
    rate = parts_.checked_rate();
  } catch (const ConfigError& error) {
    refuse(error);  // all ranks have the same one
  }
  const bool overflow = overflows();
  const GradientTransform scaling = transform();  // with the scale that the sums carry
  const bool take = !parts_.scaler || parts_.scaler->update(overflow);
  const int lead = agreement_.lead;  // a rank that still trains
  if (take) {
    update(scaling, rate);
    forget(StepOutcome::kUpdated);
  } else {
    drop();
  }
  if (parts_.options.broadcast_buffers && parts_.ranks->size() > 1) {
    parts_.broadcast_buffers(lead);
  }
  if (take) {
    parts_.phase.enter(Phase::kBetweenSteps);
  }
  return take;
}

void StepEnd::update(const GradientTransform& scaling, double rate) {
  drill_step(PulsePhase::kUpdate, parts_.steps, parts_.ranks->rank(), parts_.ranks->size());
  std::vector<RowBounds::Scaled> rows;
  if (parts_.bounds) {
    rows = parts_.bounds->measure();
  }
  std::vector<Pruner::Cut> cuts;
  if (parts_.pruner) {
    cuts = parts_.pruner->measure(parts_.steps);
  }
  parts_.phase.enter(Phase::kUpdating);
  parts_.update.emplace(parts_.plan, *parts_.memory);
  if (parts_.bounds) {
    parts_.bounds->apply(rows);
  }
  if (parts_.pruner) {
    parts_.pruner->apply(cuts);
  }
  parts_.optimizer->update(*parts_.update, gradients(), scaling, rate);
  for (std::size_t i = 0; i < agreement_.used.size(); ++i) {
    if (agreement_.used[i]) {
      parts_.update->changed(i);
    }
  }
  for (const RowBounds::Scaled& row : rows) {
    parts_.update->changed(row.parameter);
  }
  for (const Pruner::Cut& cut : cuts) {
    parts_.update->changed(cut.parameter);
  }
  parts_.update->finish();
  parts_.update.reset();
  ++parts_.steps;
  pulse().step.store(parts_.steps, std::memory_order_relaxed);
}

void StepEnd::drop() {
  forget(StepOutcome::kDropped);
  parts_.phase.enter(Phase::kBetweenSteps);
}

void StepEnd::abandon() {
  const int lead = agreement_.lead;
  drop();
  if (parts_.options.broadcast_buffers && parts_.ranks->size() > 1) {
    parts_.broadcast_buffers(lead);
  }
}

void StepEnd::forget(StepOutcome outcome) {
  parts_.gradients->end_step(outcome);
  parts_.memory->end_of_step();
  parts_.kept.forget();
  if (parts_.bounds) {
    parts_.bounds->forget();
  }
  first_left_out_ = 0;
  left_out_ = 0;
  clip_.reset();
  agreement_ = {};
}

}  // namespace trireme::detail
