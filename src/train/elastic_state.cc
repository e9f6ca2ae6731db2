#include "trireme/train/elastic_state.h"

#include "train/note_names.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme {

using detail::concat;
using detail::kEngineNote;

ElasticState::ElasticState(Resumable& engine, const std::shared_ptr<World>& world)
    : engine_(engine), vault_(launcher_keeps_memory() ? std::make_unique<Vault>(world) : nullptr) {
  if (vault_ && !vault_->lost().empty() && world->rank() == 0) {
    log(LogLevel::kWarning,
        concat("{}: this world begins with what the program loads by itself, its last checkpoint "
               "or nothing",
               {vault_->lost()}));
  }
  if (!vault_ || !vault_->newest()) {
    return;
  }
  notes_ = vault_->newest()->notes;
  kept_ = vault_->newest()->step;
  engine_.restore([this](const StateView& into) { vault_->load(into); }, notes_.at(kEngineNote));
  notes_.erase(kEngineNote);
  const EngineState state = engine_.state();
  vault_->keep_loaded(state.view);
}

void ElasticState::keep(const Notes& notes) {
  if (!vault_) {
    return;
  }
  TRIREME_CHECK(notes.count(kEngineNote) == 0,
                "the note \"{}\" is the engine's own: choose another name",
                {kEngineNote});
  const EngineState state = engine_.state();
  Notes all = notes;
  all[kEngineNote] = engine_.progress();
  vault_->save(++kept_, state.view, all);
}

}  // namespace trireme
