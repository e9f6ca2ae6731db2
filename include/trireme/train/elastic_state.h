#pragma once

#include <memory>

#include "trireme/checkpoint/vault.h"
#include "trireme/parallel/resumable.h"

namespace trireme {

// An engine's state, kept after every step in memory that outlives the ranks of an elastic job, so
// that a loss costs the step at hand and no more. In a loop of your own it takes five lines:
//
//   return trireme::run_elastic([](const std::shared_ptr<trireme::World>& world) {
//     trireme::Engine engine(make_model(), trireme::AdamW({.lr = 3e-4}), {.zero = 2}, world);
//     trireme::ElasticState state(engine, world);  // goes on where the ranks before had been
//     while (engine.steps() < kSteps) {
//       ...
//       state.keep();
//     }
//     return 0;
//   });
//
// What the result may depend on is the engine's state and the number of the step, and not the rank:
// after a loss there are others. In a job that is not elastic nothing is kept, and nothing changes.
class ElasticState {
 public:
  // Restores what was kept, if anything was. Collective; `engine` outlives it.
  ElasticState(Resumable& engine, const std::shared_ptr<World>& world);

  // What was kept with the state that was restored; empty at the beginning.
  const Notes& notes() const { return notes_; }

  // The state as it is now, between two steps. Once for each step, on every rank.
  void keep(const Notes& notes = {});

 private:
  Resumable& engine_;
  std::unique_ptr<Vault> vault_;  // null where the job is not elastic
  Notes notes_;
  std::int64_t kept_ = 0;
};

}  // namespace trireme
