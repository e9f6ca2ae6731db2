#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/checkpoint_writer.h"
#include "trireme/parallel/resumable.h"

namespace trireme {

// What an engine was resumed from.
struct Resumed {
  std::int64_t step = 0;  // that the checkpoint was saved after
  std::string path;
  Notes notes;
  int ranks = 1;  // that saved it
};

// An engine's checkpoints: saved in the background by all ranks, each its own part; loaded at any
// stage, by any number of ranks, in any precision.
//
//   trireme::Checkpoints checkpoints("run/checkpoints", world, {.retention = {.keep_last = 3}});
//   if (const auto resumed = checkpoints.resume(engine)) { ... = resumed->notes ... }
//   ...
//   if (engine.steps() % 100 == 0) checkpoints.save(engine, {{"position", ...}});
//   ...
//   checkpoints.finish();
//
// All calls but check() and failure() are collective.
class Checkpoints {
 public:
  Checkpoints(const std::string& folder,
              std::shared_ptr<Communicator> ranks,
              const CheckpointOptions& options = {});

  // Weights, optimizer states, averages, buffers, generators, step counts, schedule and loss scale,
  // between two steps. Training may continue at once. The checkpoint is named after `step`; not
  // given: the engine's updates so far (which do not count steps that float16 skipped).
  SaveReport save(Resumable& engine,
                  const Notes& notes = {},
                  std::optional<std::int64_t> step = std::nullopt);
  // See CheckpointWriter.
  void check() const { writer_.check(); }
  std::string failure() const { return writer_.failure(); }
  void finish() { writer_.finish(); }

  // Loads the newest checkpoint, or the one of `step`, into the engine; returns nothing if there is
  // none. On the number of ranks that saved it, the generators continue where they were.
  std::optional<Resumed> resume(Resumable& engine, std::optional<std::int64_t> step = std::nullopt);

  const CheckpointFolder& folder() const { return writer_.folder(); }

 private:
  std::shared_ptr<Communicator> ranks_;
  CheckpointWriter writer_;
};

// Loads all of one checkpoint (".../step-00000100") into an engine, exactly. Collective; if it
// throws, it does so on every rank, and the engine can then only be unwrapped. Throws ConfigError
// with every difference, CheckpointError.
Resumed load_checkpoint(const std::string& checkpoint, Resumable& engine);

// Only the weights and buffers of one. `partial`: what fits, the rest is returned.
LoadDifferences load_checkpoint_weights(const std::string& checkpoint,
                                        Resumable& engine,
                                        bool partial = false);

}  // namespace trireme
