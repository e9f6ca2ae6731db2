#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/comm/communicator.h"
#include "trireme/shard/state_view.h"

namespace trireme {

struct CheckpointOptions {
  Retention retention{};
  // Memory for the copy that is written while training continues. 0: as much as this rank saves.
  // If it is less, save() waits for the disk, and says so.
  std::size_t snapshot_bytes = 0;
  // save() returns when the checkpoint is complete on disk.
  bool wait = false;
  // Told, on rank 0, what a person should know: that training had to wait for the disk.
  // Default: the log.
  std::function<void(const std::string& text)> say{};
  // Called by rank 0's writing thread when all files are on disk, before the checkpoint appears: to
  // put on disk what must not be older than it.
  std::function<void()> before_publish{};
};

struct SaveReport {
  std::uint64_t rank_bytes = 0;  // that this rank has to write
  double copy_seconds = 0;       // in which training stood still for the snapshot ...
  double disk_seconds = 0;       // ... and for the disk: an unfinished save, or a small snapshot
};

// Writes checkpoints of a job into a folder, in the background. Every rank writes what it alone has
// (or was dealt) as one safetensors file; rank 0 adds the manifest when all are on disk, and only
// then does the checkpoint get its name. Nobody gathers anything.
//
// A failure (a full disk) is thrown by check() on the ranks that know of it, and by the next call
// of save() or finish() on all; what was complete before stays complete.
class CheckpointWriter {
 public:
  // Takes the folder's lock, creates the folder if it is missing and removes what killed runs left
  // behind. Collective. Throws ConfigError, on every rank, if another job writes there.
  CheckpointWriter(const std::string& folder,
                   std::shared_ptr<Communicator> ranks,
                   const CheckpointOptions& options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  // gives up what is not finished

  // Copies the slices, each element of which exactly one rank has, and writes them while training
  // continues. Collective.
  SaveReport save(std::int64_t step, const StateView& state, const Notes& notes);

  // Throws if a save has failed. Costs next to nothing: call it in every step.
  void check() const;
  // The reason of the failure that check() would throw; empty: none.
  std::string failure() const;
  // Waits for what is being written. Collective.
  void finish();

  const CheckpointFolder& folder() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
