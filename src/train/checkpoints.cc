#include "trireme/train/checkpoints.h"

#include "train/note_names.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using detail::concat;
using detail::kEngineNote;

std::unique_ptr<CheckpointReader> open_on_all(const std::string& checkpoint, Communicator& ranks) {
  std::unique_ptr<CheckpointReader> reader;
  on_all_ranks(ranks, [&] { reader = std::make_unique<CheckpointReader>(checkpoint); });
  return reader;
}

}  // namespace

Checkpoints::Checkpoints(const std::string& folder,
                         std::shared_ptr<Communicator> ranks,
                         const CheckpointOptions& options)
    : ranks_(ranks), writer_(folder, std::move(ranks), options) {}

SaveReport Checkpoints::save(Resumable& engine,
                             const Notes& notes,
                             std::optional<std::int64_t> step) {
  TRIREME_CHECK(notes.count(kEngineNote) == 0,
                "the note \"{}\" is the engine's own: choose another name",
                {kEngineNote});
  const EngineState state = engine.state();
  Notes all = notes;
  all[kEngineNote] = engine.progress();
  return writer_.save(step.value_or(engine.steps()), state.view, all);
}

std::optional<Resumed> Checkpoints::resume(Resumable& engine, std::optional<std::int64_t> step) {
  // Rank 0 looks: another's view of a shared file system may be older.
  std::vector<std::int64_t> chosen = {-1};
  on_all_ranks(*ranks_, [&] {
    if (ranks_->rank() != 0) {
      return;
    }
    if (step && !folder().contains(*step)) {
      std::string steps;
      for (const std::int64_t each : folder().steps()) {
        steps += concat(steps.empty() ? "" : ", ", each);
      }
      throw ConfigError(concat("there is no checkpoint of step {} in \"{}\"; there are: {}",
                               {*step, folder().path(), steps.empty() ? "none" : steps}));
    }
    chosen[0] = step ? *step : folder().newest().value_or(-1);
  });
  ranks_->broadcast(chosen, 0).wait();
  if (chosen[0] < 0) {
    return std::nullopt;
  }
  Resumed resumed = load_checkpoint(folder().path_of(chosen[0]), engine);
  on_all_ranks(*ranks_, [&] {
    if (ranks_->rank() == 0) {
      folder().set_latest(chosen[0]);  // later ones are of a future that was given up
    }
  });
  return resumed;
}

Resumed load_checkpoint(const std::string& checkpoint, Resumable& engine) {
  Communicator& ranks = engine.ranks();
  const auto reader = open_on_all(checkpoint, ranks);
  const Manifest& manifest = reader->manifest();
  const auto progress = manifest.notes.find(kEngineNote);
  TRIREME_CHECK(progress != manifest.notes.end(),
                "the checkpoint \"{}\" holds weights only: it cannot be resumed from, but "
                "load_checkpoint_weights() loads them",
                {checkpoint});
  engine.restore(
      [&](const StateView& into) {
        reader->load(into);
        if (manifest.ranks == ranks.size()) {
          reader->load(into, {.kinds = {kRandomKind}, .partial = true});
        }
      },
      progress->second);
  return {manifest.step, checkpoint, manifest.notes, manifest.ranks};
}

LoadDifferences load_checkpoint_weights(const std::string& checkpoint,
                                        Resumable& engine,
                                        bool partial) {
  const auto reader = open_on_all(checkpoint, engine.ranks());
  LoadDifferences differences;
  engine.restore([&](const StateView& into) {
    differences = reader->load(into, {.kinds = {kWeightKind, kBufferKind}, .partial = partial});
  });
  return differences;
}

}  // namespace trireme
