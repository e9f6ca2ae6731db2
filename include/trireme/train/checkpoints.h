#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/checkpoint_writer.h"
#include "trireme/parallel/engine.h"

namespace trireme {

// What an engine was resumed from.
struct Resumed {
  std::int64_t step = 0;  // that the checkpoint was saved after
  std::string path;
  Notes notes;
  int ranks = 1;  // that had saved it
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
  // between two steps. Training may go on at once. The checkpoint is called after `step`; nothing:
  // the engine's updates so far (which do not count what float16 has skipped).
  SaveReport save(EngineBase& engine,
                  const Notes& notes = {},
                  std::optional<std::int64_t> step = std::nullopt);
  // See CheckpointWriter.
  void check() const { writer_.check(); }
  std::string failure() const { return writer_.failure(); }
  void finish() { writer_.finish(); }

  // The newest checkpoint, or the one of `step`, into the engine; nothing where there is none. With
  // the number of ranks that saved it, the generators go on where they were.
  std::optional<Resumed> resume(EngineBase& engine,
                                std::optional<std::int64_t> step = std::nullopt);

  const CheckpointFolder& folder() const { return writer_.folder(); }

 private:
  std::shared_ptr<Communicator> ranks_;
  CheckpointWriter writer_;
};

// All of one checkpoint (".../step-00000100") into an engine, exactly. Collective; where it throws,
// it does so on every rank, and the engine is only good to be unwrapped. Throws ConfigError with
// every difference, CheckpointError.
Resumed load_checkpoint(const std::string& checkpoint, EngineBase& engine);

// Only the weights and buffers of one. `partial`: what fits, the rest is returned.
LoadDifferences load_checkpoint_weights(const std::string& checkpoint,
                                        EngineBase& engine,
                                        bool partial = false);

}  // namespace trireme
