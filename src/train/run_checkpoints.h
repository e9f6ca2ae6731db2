#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "train/train_progress.h"
#include "trireme/comm/world.h"
#include "trireme/parallel/resumable.h"
#include "trireme/settings/train_settings.h"
#include "trireme/train/checkpoints.h"
#include "trireme/train/trainer.h"

namespace trireme::detail {

// The checkpoints of a training: the engine's state, and with it the notes "train" (its progress)
// and "settings". Does nothing where there is no folder for them.
class RunCheckpoints {
 public:
  // Takes the folder and chooses what to go on from. Collective.
  RunCheckpoints(const TrainSettings& settings,
                 const TrainCheckpoints& where,
                 const torch::nn::Module& module,
                 std::shared_ptr<World> world,
                 TrainObserver* observer);

  // The step whose checkpoint is to be gone on from; nothing: from the start.
  std::optional<std::int64_t> resumed_step() const { return step_; }

  // The checkpoint into the engine. Refuses settings that make another result. Collective.
  struct Loaded {
    TrainProgress progress;
    std::string path;
    int ranks = 0;  // that had saved it
    std::string settings;
  };
  Loaded load(Resumable& engine);
  // What is saved from now on was trained with these.
  void keep_settings(const TrainSettings& settings) { trained_with_ = settings; }
  // Once nothing speaks against it any more: from now on this is the newest one. Collective.
  void take_up();

  bool saves() const { return folder_ && settings_.save_every > 0; }
  bool is_due(std::int64_t step) const { return saves() && step % settings_.save_every == 0; }
  // Only where saves(). Once for each step and its evaluation, however often it is asked to.
  // Returns for how many seconds training stood still. Collective.
  double save(Resumable& engine, const TrainProgress& progress);
  // Why a checkpoint could not be written; empty: none has failed. What is to be said is said.
  std::string failure();
  // Waits for what is being written. Only where saves(). Collective.
  void finish();

 private:
  Resumed resume(Resumable& engine);
  std::string other_steps() const;
  void say(const std::string& text) const;
  void say_waiting();

  const TrainSettings& settings_;
  std::shared_ptr<World> world_;
  TrainObserver* observer_;  // of the rank that reports; else null
  std::mutex mutex_;
  std::vector<std::string> waiting_;  // guarded by mutex_: said by the thread that writes
  std::optional<Checkpoints> folder_;
  std::optional<std::int64_t> step_;
  std::int64_t saved_step_ = -1;
  std::int64_t saved_evaluated_step_ = -1;
  std::optional<TrainSettings> trained_with_;  // where it was not with those of this start
  Notes module_notes_;                         // for those who take the weights elsewhere
};

}  // namespace trireme::detail
