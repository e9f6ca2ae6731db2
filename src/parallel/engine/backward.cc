// Backward passes: of one engine, or of several that share a loss. And how those are given up.

#include <deque>

#include "parallel/engine/engine_parts.h"
#include "parallel/engine/options_check.h"
#include "parallel/model/bounded_rows.h"
#include "parallel/model/half_autocast.h"
#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/tensor/memory_limit.h"

namespace trireme {
namespace {

using detail::EngineParts;
using detail::Phase;

void check_loss(const at::Tensor& loss, const at::Tensor& gradient) {
  TRIREME_CHECK(loss.defined() && loss.requires_grad() && (gradient.defined() || loss.numel() == 1),
                "backward() needs a loss of one element that depends on the parameters, found ",
                !loss.defined() ? "an undefined tensor"
                : !loss.requires_grad()
                    ? "one that requires no gradient"
                    : "several elements (BackwardOptions::gradient has theirs)");
  TRIREME_CHECK(!gradient.defined() || gradient.sizes() == loss.sizes(),
                "backward(): BackwardOptions::gradient has other sizes than the loss");
}

void check_pass(EngineParts& e) {
  e.check_alive();
  const std::int64_t own = e.own_micro_batches();
  TRIREME_CHECK(
      !e.phase.is(Phase::kBackwardDone) && !(e.phase.is(Phase::kSummed) && own > 0),
      "backward() was called twice without step(): call step() after every micro-batch; it "
      "updates the parameters when the step's last one is done (BackwardOptions::more is for "
      "several losses of one micro-batch)");
  TRIREME_CHECK(own > 0,
                "rank {} has no micro-batch in a step of {} on {} ranks: call step() alone",
                {e.ranks->rank(), e.dealt.total(), e.ranks->size()});
  TRIREME_CHECK(!e.end.leaves_out(),
                "backward() was called after the flush() or drop() of another engine that shares "
                "its passes: call the same of this one first");
  e.check_no_scope("backward()");
  detail::check_stream(e.plan);
  e.unchanged->check();
}

void check_scale(const std::vector<EngineParts*>& engines) {
  const bool half = detail::take_half_autocast();
  for (const EngineParts* e : engines) {
    TRIREME_CHECK(
        !half || e->scaler,
        "the loss was computed under Autocast(at::kHalf), whose gradients underflow without "
        "a loss scale: set EngineOptions::scale_loss, or use bfloat16");
    TRIREME_CHECK(!e->scaler || engines.size() == 1,
                  "backward() of {} engines: each would scale the loss (EngineOptions::scale_loss) "
                  "on its own: use bfloat16 or float32",
                  {engines.size()});
  }
}

// A rank that waits for one engine's sums while another waits for the other's would be a circle.
void check_together(EngineParts& e) {
  const int size = e.ranks->size();
  for (int rank = 0; rank < size; ++rank) {
    TRIREME_CHECK(e.dealt.of(rank) == e.dealt.of(0),
                  "backward() of several engines: expected as many micro-batches on every rank, "
                  "found {} on rank 0 and {} on rank {}: choose EngineOptions::micro_batches as a "
                  "multiple of the {} ranks",
                  {e.dealt.of(0), e.dealt.of(rank), rank, size});
  }
  TRIREME_CHECK(
      size == 1 || !e.options.gradient_hook,
      "backward() of several engines: one of them has EngineOptions::gradient_hook, which "
      "waits for the other ranks in the middle of the pass");
  for (const detail::Unit& unit : e.plan.units) {
    TRIREME_CHECK(
        size == 1 || !unit.sparse,
        "backward() of several engines: parameter {} has sparse gradients, whose sum waits "
        "for the other ranks in the middle of the pass: use dense ones",
        {unit.name});
  }
}

void begin(EngineParts& e, const at::Tensor& loss, bool more) {
  detail::pulse().step.store(e.steps, std::memory_order_relaxed);
  detail::mark(PulsePhase::kBackward);
  detail::drill_step(PulsePhase::kBackward, e.steps, e.ranks->rank(), e.ranks->size());
  e.kept.collect(more);
  if (!more) {
    if (e.phase.done() == 0 && e.dealt.rounds_before(e.ranks->rank()) > 0) {
      e.end.leave_out_first_round();
    }
    std::vector<bool> expected = e.hooks->reachable_from(loss);
    e.kept.mark(expected);
    e.gradients->begin_round(e.phase.done() + 1 == e.own_micro_batches(), std::move(expected));
  }
}

void run(const at::Tensor& loss,
         const std::vector<EngineParts*>& engines,
         const BackwardOptions& how) {
  for (EngineParts* e : engines) {
    check_pass(*e);
  }
  check_loss(loss, how.gradient);
  check_scale(engines);
  detail::check_bounds_used();
  detail::share_passes(engines);
  std::deque<detail::StepPhase::Backward> passes;
  for (EngineParts* e : engines) {
    begin(*e, loss, how.more);
    passes.emplace_back(e->phase);
  }
  const auto& scaler = engines[0]->scaler;
  (scaler ? loss * scaler->scale() : loss).backward(how.gradient, how.retain_graph);
  MemoryLimit::check();  // before the others are told that this rank's gradients are good
  if (how.more) {
    for (detail::StepPhase::Backward& pass : passes) {
      pass.finish_part();
    }
    return;
  }
  // What may fail here alone comes before the others are told of any engine: all or none can be
  // given up.
  for (EngineParts* e : engines) {
    e->kept.hand_over([&](std::size_t parameter, const at::Tensor& gradient) {
      e->gradients->add(parameter, gradient);
    });
  }
  for (std::size_t i = 0; i < engines.size(); ++i) {
    EngineParts& e = *engines[i];
    e.gradients->end_round({.took_part = true, .rate = e.rate()});
    passes[i].finish();
    detail::mark(PulsePhase::kBackward);
  }
}

void check_shared(const std::vector<EngineParts*>& engines, const char* what) {
  TRIREME_CHECK(!engines.empty(), what, " needs an engine");
  for (auto one = engines.begin(); one != engines.end(); ++one) {
    for (auto other = engines.begin(); other != one; ++other) {
      TRIREME_CHECK(*other != *one, what, " was given the same engine twice");
      // Their gradients come in an order that is each rank's own.
      TRIREME_CHECK((*other)->ranks != (*one)->ranks || (*one)->ranks->size() == 1,
                    what,
                    " of several engines: they share a communicator, on which the ranks could not "
                    "tell their sums apart: build all but one of them with one of its own, "
                    "world->split(0, world->rank())");
    }
  }
  for (EngineParts* e : engines) {
    if (engines.size() > 1) {
      check_together(*e);
    }
  }
}

}  // namespace

void EngineBase::backward(const at::Tensor& loss, const BackwardOptions& how) {
  run(loss, {&parts()}, how);
}

void backward(const at::Tensor& loss,
              const std::vector<EngineBase*>& engines,
              const BackwardOptions& how) {
  std::vector<EngineParts*> parts;
  for (EngineBase* engine : engines) {
    TRIREME_CHECK(engine != nullptr, "backward() was given an engine that is null");
    parts.push_back(&engine->parts());
  }
  check_shared(parts, "backward()");
  run(loss, parts, how);
}

void give_up(const std::string& reason, const std::vector<EngineBase*>& engines) {
  std::vector<EngineParts*> parts;
  for (EngineBase* engine : engines) {
    TRIREME_CHECK(engine != nullptr, "give_up() was given an engine that is null");
    parts.push_back(&engine->parts());
  }
  check_shared(parts, "give_up()");
  detail::share_passes(parts);
  detail::give_up_shared(*parts[0], reason);
}

}  // namespace trireme
