#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/vault.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/world.h"
#include "trireme/data/source.h"
#include "trireme/settings/train_settings.h"
#include "trireme/train/run_recorder.h"

namespace trireme::worker {

// What one rank does in one world: a training, or those of cross-validation.
class TrainJob {
 public:
  // `step`: what rank 0 was told (train_as_rank). Collective.
  TrainJob(std::shared_ptr<World> world, const std::string& step);
  // The exit code.
  int run();

  int rank() const { return world_->rank(); }
  // What would be the same again: settings or data that cannot be used, a model that does not fit.
  // A checkpoint may be another one the next time.
  bool refuses(const std::exception& error) const;
  // Not a run yet: its launcher removes the folder. Between two folds there is no recorder.
  void take_back_settings() const;
  // Lets the other ranks know at once why this one leaves. Where settings or data cannot be used,
  // what the ranks did last explains nothing.
  void abandon(const std::string& reason, bool by_input);

 private:
  // A limit of the user's own that no step has fitted into yet.
  bool has_never_fitted() const;
  bool leads() const { return world_->rank() == 0; }
  bool is_after_a_loss() const { return launcher_keeps_memory() && world_->epoch() > 0; }
  // And nothing has to be said again but what has changed.
  bool goes_on() const { return is_after_a_loss() && (step_ || is_kept()); }
  bool is_kept() const { return vault_ && vault_->newest(); }
  // The checkpoint to go on with where the launcher keeps nothing newer and none was named: the
  // newest, or the first fold that has not ended. Nothing: there is none.
  std::optional<std::int64_t> step_after_a_loss() const;
  // On several machines nobody has known before how many ranks they have together.
  void settle_ranks();
  // Of many folds, the first alone shows its steps.
  std::shared_ptr<RunRecorder> make_recorder(const std::string& folder, bool quiet = false);
  OpenedData open();
  void print(const std::string& text) const;
  int train_once();

  // --- cross-validation
  std::string fold_folder(int fold) const;
  // The folds that had ended when the run was ended, as rank 0 finds them.
  std::vector<std::optional<TrainResult>> earlier_folds();
  // A fold that was not saved begins anew, and leaves nothing of its first attempt.
  void prepare_folder(const std::string& folder) const;
  int validate();

  // --- the end
  int exit_code(const TrainResult& result);

  std::shared_ptr<World> world_;
  std::optional<std::int64_t> step_;
  TrainSettings settings_;
  std::string run_;
  std::optional<FolderLock> lock_;
  std::shared_ptr<Vault> vault_;
  std::shared_ptr<RunRecorder> recorder_;
  bool has_model_ = false;
  std::string compression_text_;  // to be told when there is a recorder
};

}  // namespace trireme::worker
