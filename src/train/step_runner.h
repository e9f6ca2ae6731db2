#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/rank_balance.h"
#include "train/run_phases.h"
#include "train/train_progress.h"
#include "trireme/average/averaging.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/data/loader.h"
#include "trireme/data/views.h"
#include "trireme/models/task.h"
#include "trireme/optim/schedule.h"
#include "trireme/parallel/engine.h"
#include "trireme/parallel/running_statistics.h"
#include "trireme/server/stale_engine.h"
#include "trireme/settings/train_settings.h"
#include "trireme/settings/values.h"
#include "trireme/tensor/memory_limit.h"

namespace trireme::detail {

// Computes steps: deals micro-batches, feeds them, seeds what is random about each, recovers when
// memory runs out, and tells every rank what the step was like.
class StepRunner {
 public:
  using Say = std::function<void(const std::string& text)>;

  // The model has a task. `say`: for what a person should know (on the rank that reports).
  StepRunner(const TrainSettings& settings,
             const Trainable& model,
             std::shared_ptr<const Dataset> data,
             std::shared_ptr<World> world,
             Say say);

  // For so many copies of the state that a machine keeps, beside what steps take. Before begin() or
  // go_on().
  void leave_room(int copies) { copies_ = copies; }

  // Before the first step: a run that begins looks for the largest micro-batch where it is asked
  // to; one that goes on from a checkpoint, which the engine has loaded, is told where it was.
  void begin();
  void go_on(const TrainProgress& progress);

  struct Outcome {
    double loss = 0;
    double learning_rate = 0;
    double gradient_norm = 0;
    double seconds = 0;
    std::int64_t samples = 0;
    double data_seconds = 0;
    double comm_seconds = 0;
    std::int64_t rank_bytes = 0;
    std::int64_t tensor_bytes = 0;
    bool stop = false;  // somebody wants to stop
    bool skipped = false;
    // Of the rank that waited least for data of others, and what all sent to other machines.
    double exchange_seconds = 0;
    std::int64_t network_bytes = 0;
    std::optional<std::int64_t> averaged_every;  // of a run with phases; 0: it was exact
    std::string phase_news;                      // a phase has ended with it: which, and why
  };
  // What this rank has to tell the others in a step.
  struct Notice {
    bool wants_stop = false;
    std::string failure;  // why it cannot go on; thrown by all ranks as CheckpointError
  };
  // The next step. `before_update`, where given, is called when the gradients are complete.
  // Collective.
  Outcome run(const Notice& notice, const std::function<void()>& before_update);

  // Of this rank's replica, where there are several, or of this rank alone (sync = stale, async).
  EngineBase& engine() { return *engine_; }
  const EngineBase& engine() const { return *engine_; }
  // What checkpoints are of: the engine, or all replicas.
  Resumable& resumable() const;
  // The same for the memory that the launcher keeps.
  EngineState state_to_keep() {
    return phases_      ? phases_->engine().state_to_keep()
           : averaging_ ? averaging_->state_to_keep()
                        : engine_->state();
  }
  // Calls `body` while the weights are those that all ranks have learned together. Collective.
  void with_mean(const std::function<void()>& body);
  // After the last step, whatever its number: hears what ranks have still to tell. Collective.
  void finish();
  int replicas() const { return replicas_ ? replicas_->count() : 1; }
  // Collective.
  MemoryReport memory_report() {
    return stale_ ? stale_->memory_report() : engine_->memory_report();
  }
  std::optional<StaleUse> stale_use() {
    return stale_ ? std::optional(stale_->use()) : std::nullopt;
  }
  AveragingUse averaging() const {
    return phases_      ? phases_->engine().averaging_use()
           : averaging_ ? averaging_->use()
                        : AveragingUse{};
  }
  CompressionUse compression() const {
    return phases_ ? phases_->engine().compression() : engine_->compression();
  }
  // Of phases, as a setting; empty: the run has none.
  std::string schedule_of_phases() const { return phases_ ? phases_->schedule() : ""; }
  // Of the run that is replayed.
  const std::optional<Replayed>& replayed() const {
    static const std::optional<Replayed> kNone;
    return stale_ ? stale_->replayed() : kNone;
  }
  void go_on_from_newest() { stale_->go_on_from_newest(); }  // only where one is
  std::int64_t stale_sent_bytes() const { return stale_ ? stale_->sent_bytes() : 0; }
  std::int64_t steps() const { return steps_; }          // of the whole run
  std::int64_t next_step() const { return next_step_; }  // from 0
  DataPosition position() const { return position_; }
  double epoch() const { return sampler_.epoch_at(position_); }
  double epoch_before() const;                     // the last step
  double base_rate() const { return base_rate_; }  // the learning rate before schedules
  std::int64_t micro_batch() const { return micro_batch_; }
  // Of this rank at the worst moment so far, evaluations included.
  std::int64_t peak_tensor_bytes() const;
  const std::vector<std::int64_t>& stragglers() const { return balance_.stragglers(); }
  // Scores of a batch in the precision of the run.
  at::Tensor scores(const TensorBatch& batch) const;
  // What a step of training makes smaller.
  at::Tensor loss(const TensorBatch& batch) const;
  // Samples of all steps, in order, of the step at hand: for a record.
  std::vector<std::int64_t> samples_of_next_step() const;

 private:
  std::int64_t batch_at(std::int64_t step) const;
  std::int64_t count_steps() const;
  void take_up_weights();
  void limit_memory() const;
  void forget_peak() const;
  double bytes_of_copies() const;
  void say_who_is_idle(bool resumed) const;
  void say_all(const std::vector<std::string>& remarks) const;  // but empty ones
  std::string how_to_fit() const;
  void find_micro_batch();
  bool fits(std::int64_t micro_batch);
  void deal(std::int64_t batch);
  std::int64_t first_micro_batch_here() const;
  double communication_seconds() const;
  void request_step(DataPosition position);
  void compute(std::int64_t batch, const std::function<void()>& before_update);
  void compute_one(std::int64_t micro_batch, const Batch& batch);
  std::int64_t common_batch() const;
  void make_smaller(const StepGivenUp& reason);
  double mean_weight() const;
  std::vector<double> loss_values() const;
  // Ranks that compute a part of every batch on their own, or replicas; 1: all do it together.
  int parts() const { return workers_ > 0 ? workers_ : replicas(); }
  // Replicas have engines of their own in this step.
  bool are_apart() const {
    return replicas_ && (!phases_ || phases_->engine().averaging() != nullptr);
  }
  void take_engine();
  std::int64_t network_bytes() const;
  bool computes() const { return workers_ == 0 || world_->rank() < workers_; }
  std::int64_t local_micro_batches() const {
    return computes() ? engine_->local_micro_batches() : 0;
  }
  void end_micro_batch();
  Outcome exchange(const Notice& notice, Outcome mine);
  // What ranks tell each other of a step, on its way.
  struct Told {
    // What each rank has to say, then its losses.
    enum : std::size_t {
      kStop,
      kFailed,
      kSeconds,
      kCompute,
      kData,
      kComm,
      kRankBytes,
      kTensorBytes,
      kNetworkBytes,
      kFirst
    };
    // Kept by the operation that is on its way, which may outlive this.
    using Numbers = std::shared_ptr<std::vector<double>>;
    Numbers record = std::make_shared<std::vector<double>>();
    Numbers records = std::make_shared<std::vector<double>>();  // of all ranks
    std::vector<std::int64_t> dealt;
    std::size_t rounds = 0;
    std::int64_t step = 0;
    std::string failure;  // Notice
    Work work;
    Told() = default;
    Told(const Told&) = delete;
    Told& operator=(const Told&) = delete;
    ~Told() { work.forget(); }
  };
  Outcome hear(Told& told, Outcome mine);
  bool all_want_to_stop(Told& told) const;  // with the step that this is told of

  // What the caller has set is in force again at the end.
  struct LimitBefore {
    std::uint64_t bytes = MemoryLimit::limit_bytes();
    std::uint64_t most = MemoryLimit::most_bytes();
    LimitBefore() = default;
    LimitBefore(const LimitBefore&) = delete;
    LimitBefore& operator=(const LimitBefore&) = delete;
    ~LimitBefore() { MemoryLimit::set(bytes, most); }
  };

  const LimitBefore limit_before_;
  const TrainSettings settings_;
  Trainable model_;
  const at::Device device_;  // of the model
  std::shared_ptr<const Dataset> data_;
  std::shared_ptr<World> world_;
  Say say_;
  std::optional<Replicas> replicas_;  // settings.sync
  const int workers_;                 // with stale and async: ranks that compute; else 0
  std::vector<BatchChange> batch_changes_;
  Sampler sampler_;
  std::int64_t micro_batch_ = 0;
  std::int64_t steps_ = 0;
  double base_rate_ = 0;
  std::unique_ptr<EngineBase> own_engine_;
  std::unique_ptr<StaleEngineBase> stale_;  // instead of it
  std::unique_ptr<RunPhases> phases_;       // the same
  EngineBase* engine_ = nullptr;            // one of these
  std::unique_ptr<Averaging> averaging_;    // of the replicas
  RunningStatistics statistics_;
  RankBalance balance_;
  Loader loader_;

  int copies_ = 0;  // of the state, that are or will be kept
  std::int64_t next_step_ = 0;
  DataPosition position_ = 0;
  std::vector<std::int64_t> dealt_;
  std::optional<DataPosition> requested_until_;  // batches of steps before it are on their way
  std::vector<at::Tensor> losses_;               // of this rank's micro-batches in this step
  std::deque<std::unique_ptr<Told>> told_;       // that are not heard yet
  double stale_seconds_ = 0;                     // spent on sending gradients and getting weights
  double weight_ = 0;  // that each micro-batch's losses are divided by; 0: its own samples'
};

}  // namespace trireme::detail
