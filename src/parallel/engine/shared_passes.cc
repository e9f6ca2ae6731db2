#include "parallel/engine/shared_passes.h"

#include "parallel/engine/engine_parts.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

void check_can_give_up(const EngineParts& e, bool own) {
  TRIREME_CHECK(!e.phase.is(Phase::kUpdating),
                "give_up() was called after an update that failed: parameters are half updated, "
                "call unwrap()");
  if (!e.phase.is(Phase::kBackwardFailed)) {
    e.check_alive();
  }
  TRIREME_CHECK(own || !e.complete_here(),
                "give_up() was called when another engine that shares its backward passes has had "
                "this rank's last micro-batch: call step() of that one first");
  TRIREME_CHECK(!e.complete_here(),
                "give_up() was called after this rank's last micro-batch: there is nothing to give "
                "up");
  e.check_no_scope("give_up()");
}

// In the middle of a round the others need its end: what has not come will not come. A pass whose
// gradients are kept here is in none.
void end_failed_round(EngineParts& e) {
  if (e.phase.is(Phase::kBackwardFailed) && !e.kept.collects() &&
      (!e.context().one_communication() || e.phase.done() + 1 == e.own_micro_batches())) {
    e.gradients->end_round({.given_up = true, .rate = e.rate()});
    e.phase.count_micro_batch();
  }
}

}  // namespace

void share_passes(const std::vector<EngineParts*>& engines) {
  if (engines.size() == 1) {
    engines[0]->shared.reset();
    return;
  }
  if (engines_of(*engines[0]) == engines) {
    return;
  }
  const auto shared = std::make_shared<SharedPasses>();
  for (EngineParts* e : engines) {
    shared->members.push_back({e, e->alive});
    e->shared = shared;
  }
}

std::vector<EngineParts*> engines_of(EngineParts& engine) {
  if (!engine.shared) {
    return {&engine};
  }
  std::vector<EngineParts*> engines;
  for (const SharedPasses::Member& member : engine.shared->members) {
    // One that has since had a pass of its own, or with others, has left.
    if (!member.alive.expired() && member.engine->shared == engine.shared &&
        !member.engine->phase.is(Phase::kUnwrapped)) {
      engines.push_back(member.engine);
    }
  }
  return engines;
}

void give_up_shared(EngineParts& engine, const std::string& reason) {
  const std::vector<EngineParts*> engines = engines_of(engine);
  for (const EngineParts* e : engines) {
    check_can_give_up(*e, e == &engine);
  }
  for (EngineParts* e : engines) {
    end_failed_round(*e);
  }
  StepEnd::leave_out_rounds(engines, {.given_up = true});
  engine.end.sum({.given_up = true});
  engine.end.announce({Act::Kind::kFinish, engine.base_rate});
  engine.end.finish(reason.empty() ? "no reason was given" : reason);
  throw InternalError("a step that was given up was finished");
}

}  // namespace trireme::detail
