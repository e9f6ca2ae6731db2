#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "train/gpu_watch.h"
#include "train/rank_changes.h"
#include "train/run_checkpoints.h"
#include "train/step_runner.h"
#include "train/train_progress.h"
#include "trireme/checkpoint/vault.h"
#include "trireme/optim/schedule.h"
#include "trireme/train/trainer.h"

namespace trireme::detail {

// A run of the loop: steps, and what happens between them.
class Training {
 public:
  // What is trained, on what, and who hears of it. All of it outlives the run.
  struct Subject {
    const TrainSettings& settings;
    const Trainable& model;
    const Parts& data;
    std::int64_t data_fingerprint;
    const std::shared_ptr<World>& world;
    TrainObserver* observer;  // of the rank that reports
    const std::function<bool()>& stop;
    RunCheckpoints& checkpoints;
    Vault* vault;  // null: there is none
  };
  explicit Training(const Subject& subject);
  TrainResult run();

 private:
  bool leads() const { return observer_ != nullptr; }
  double run_seconds() const;
  double run_processor_seconds() const;
  void say(const std::string& text);

  // Weights are read by the rank that keeps them; the others wait, since they must not change.
  void keep_weights(const std::string& which);

  // --- checkpoints
  void begin();

  // To whoever resumes a run that has come to its end: what there is to do.
  void say_what_is_left();
  std::string how_to_train_longer(const std::string& flags) const;
  bool begin_with_memory();
  // After what the ranks had saved, with these settings (JSON; empty: they are not known).
  void begin_after(const std::string& what, int ranks, const std::string& settings);
  void go_on(const TrainProgress& saved);
  TrainProgress progress_now();
  CompressionUse compression_use() const;
  AveragingUse averaging_use() const;
  std::optional<StaleUse> stale_use();
  // Whether one can be gone on from here: a replay, only where its run was.
  bool may_save() const;
  void save_if_due();
  // The record that is replayed has no more; has_replayed() says so.
  bool is_replayed() const;
  bool has_replayed();
  void save();
  void keep_in_memory();

  // --- a step

  // True when somebody wants to stop.
  bool take_step();
  void count(const StepRunner::Outcome& outcome);
  std::int64_t tokens_in(std::int64_t samples) const;
  void report(const StepRunner::Outcome& outcome);
  void show_gradients();
  void show_parameters();
  void show(const std::string& tag, const at::Tensor& tensor, std::int64_t step);

  // --- evaluation
  bool is_due() const;

  // Nothing is left to train.
  bool is_over() const;

  // Whether it is time to stop early; has_stalled() says so.
  bool is_stalled() const;
  bool has_stalled();

  // False where somebody wanted to stop before all was evaluated: nothing has happened then, and
  // whoever resumes evaluates.
  bool evaluate_now(bool last = false);

  // --- the end
  void finish();

  // Why the last checkpoint could not be written, which all ranks know then: the weights, which are
  // smaller, may still find room.
  std::exception_ptr save_last();
  void summarise();

  const TrainSettings& settings_;
  const Parts& data_;
  std::shared_ptr<World> world_;
  TrainObserver* observer_;
  std::function<bool()> stop_;
  RunCheckpoints& checkpoints_;
  Vault* vault_;
  Trainable judged_;  // with a task; scores in the precision of the run
  StepRunner runner_;
  std::optional<GpuWatch> gpu_watch_;  // on the rank that reports, where it trains on a GPU
  ReduceOnPlateau plateau_;
  std::optional<Goal> goal_ = goal_of(settings_);
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double processor_begin_;
  std::int64_t first_step_ = 0;  // that was taken before this part of the run
  double first_seconds_ = 0;     // that the steps before it had taken
  double last_record_seconds_ = 0;
  std::int64_t sent_bytes_ = 0;    // before the step that is reported
  std::int64_t checked_step_ = 0;  // of the last comparison of CompressionUse, the same
  ChangesOfRun changes_;
  TrainProgress progress_;  // what is in `runner_` and `plateau_`, only when it is saved
  TrainResult result_;
};

}  // namespace trireme::detail
