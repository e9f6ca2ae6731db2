#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/average/averaging.h"
#include "trireme/checkpoint/vault.h"
#include "trireme/comm/world.h"
#include "trireme/core/gpu_use.h"
#include "trireme/data/views.h"
#include "trireme/parallel/engine.h"
#include "trireme/server/stale_engine.h"
#include "trireme/settings/train_settings.h"
#include "trireme/train/evaluation.h"

namespace trireme {

// One update, as all ranks know it.
struct StepReport {
  std::int64_t step = 0;  // from 1
  std::int64_t steps = 0;
  double epoch = 0;  // after it
  double loss = 0;   // mean over the step's micro-batches, added up in their order
  double learning_rate = 0;
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  // where it is computed
  double seconds = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;    // of a gpt
  double data_seconds = 0;    // waited for data, of the rank that waited longest
  double comm_seconds = 0;    // in communication, mean of the ranks
  double record_seconds = 0;  // of the step before: spent on reporting it
  std::int64_t rank_bytes = 0;
  // Of compressed gradients, and to other replicas, by the rank that reports.
  std::int64_t sent_bytes = 0;
  CompressionUse::Check check{};  // of this step; step 0: it was not compared
  double seconds_left = 0;
  bool skipped = false;  // an overflow of float16
  // Of a run with exact steps and others: how many steps apart replicas were averaged in this one
  // (0: it was exact).
  std::optional<std::int64_t> averaged_every{};
  std::optional<GpuUse> gpus{};  // in steps in which they were looked at
};

// How a training begins: from the start, or where a checkpoint was saved.
struct TrainBeginning {
  std::int64_t step = 0;        // that was the last one taken; 0: from the start
  bool evaluated = false;       // whether the evaluation after that step is known already
  std::int64_t best_step = 0;   // of the best evaluation up to then; 0: there was none
  std::string checkpoint;       // that it resumes from; empty: from the start
  int ranks = 0;                // that saved it
  bool same_job = false;        // whose ranks have changed: it goes on, rather than begins again
  const Parts* data = nullptr;  // what is trained and evaluated on, as the model sees it
  // Nothing is left to train: what the last step was trained with.
  std::optional<TrainSettings> trained_with{};
};

// Who watches a training. Called on the rank it was given to, between steps.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // Everything has been looked at and nothing was refused: training begins. Only messages come
  // before it.
  virtual void begins(const TrainBeginning& /*beginning*/) {}
  virtual void step(const StepReport& report) = 0;
  virtual void evaluated(std::int64_t step, const Evaluation& evaluation, bool best) = 0;
  virtual void values(const std::string& tag, std::int64_t step, std::span<const float> values) = 0;
  virtual void message(const std::string& text) = 0;
  // The samples of the next step, in the order of its micro-batches (settings.record_samples).
  virtual void samples(const std::vector<std::int64_t>& samples) = 0;
  // Weights worth keeping: "best", and at the end "model".
  virtual void weights(const std::string& which, const torch::nn::Module& module) = 0;
  // A checkpoint of this step is about to be saved.
  virtual void saves(std::int64_t /*step*/) {}
  // The state after this step is about to be kept in memory, which outlives this process: what was
  // told should, too.
  virtual void keeps() {}
  // What was told up to the last saves() has to be on disk when this returns. Called on rank 0, by
  // another thread, before that checkpoint appears: so nothing on disk is older than it.
  virtual void settle() {}
};

// Of an elastic job, over the whole run.
struct RankChanges {
  std::int64_t times = 0;        // that the ranks met anew
  std::int64_t lost = 0;         // ranks
  std::int64_t left = 0;         // ranks, in good order (trireme scale, a machine asked to end)
  std::int64_t joined = 0;       // ranks, also in place of lost ones
  std::int64_t steps_again = 0;  // computed a second time
};

// Of a run: with how many ranks some of its steps were taken.
struct StepsOnRanks {
  std::int64_t from = 0;  // the first one, counted from 1
  std::int64_t to = 0;    // the last one
  std::int64_t ranks = 0;
};

struct TrainResult {
  enum class Status { kFinished, kStoppedEarly, kInterrupted };
  Status status = Status::kFinished;
  std::int64_t steps = 0;
  double seconds = 0;               // of the steps
  double loss = 0;                  // of the last step
  Evaluation evaluation;            // the last one that was finished; empty without evaluation data
  std::int64_t evaluated_step = 0;  // after which it was made
  std::int64_t best_step = 0;
  std::map<std::string, double> best;  // metrics of the best evaluation
  std::int64_t goal_step = 0;          // in which settings.goal was first reached; 0: never
  double goal_seconds = 0;             // of the run until then, evaluations included
  double processor_share = 0;          // processor time of a rank per second of the run, mean
  double per_second = 0;               // samples, after the first steps:
  std::int64_t untimed_steps = 0;      // which do not count unless there are no others
  bool counts_tokens = false;          // per_second counts tokens
  double communication_share = 0;      // of the steps' time, mean of the ranks
  CompressionUse compression{};        // of the rank that reports
  double pruned = 0;                   // of the weights of matrices
  OffloadUse offload{};                // of the rank that reports
  AveragingUse averaging{};            // the same, of replicas
  int replicas = 1;
  std::string phases{};  // "0:exact,400:8": what was exact and what averaged; empty: one of them
  // "step 400: exact to local 8; 71 % waiting, link 11.6 MB/s"
  std::vector<std::string> phase_changes{};
  std::optional<StaleUse> stale{};  // of all ranks, where they were
  double data_share = 0;            // waited for data
  double record_share = 0;          // spent on reporting, on the rank that does
  double save_share = 0;            // paused for checkpoints
  std::int64_t micro_batch = 0;
  MemoryReport memory;
  bool built_in_parts = false;    // no rank ever held the model whole
  std::int64_t tensor_bytes = 0;  // activations and other tensors at the worst moment, of any rank
  std::vector<std::int64_t> stragglers;
  RankChanges rank_changes{};
  // All steps in their order, in parts with another number of ranks each. What an older version has
  // trained on changing ranks is missing.
  std::vector<StepsOnRanks> steps_by_ranks{};
  int machines = 1;
  std::int64_t sum_group = 0;  // Communicator::sum_group, of which the last bits depend; 0: unknown
  std::uint64_t data_fingerprint = 0;  // of every sample of a cross-validation; 0: unknown
};

// Where a run is kept, so that it can be resumed, however it ended.
struct TrainCheckpoints {
  // Checkpoints are saved there (settings.save_every, keep_last, keep_every, snapshot_limit). Held
  // against other jobs for as long as training lasts. Empty: nothing is saved.
  std::string folder{};
  // Resume from the newest one there, if there is one. Else a folder that holds some is refused.
  bool resume = true;
  // Resume from this one, which has to be there.
  std::optional<std::int64_t> step{};
  // The state after every step is kept there, too, and resumed from where it is no older. Null:
  // nowhere.
  std::shared_ptr<Vault> vault{};
};

// The training loop: any model, any dataset, any stage; a step's data and random numbers follow the
// micro-batch and not the rank, so that losses are the same to the last bit for any number of ranks
// and any stage, as long as the batch and the micro-batch are the same.
//
//   auto world = trireme::init();
//   auto data = trireme::open_data({.path = "fashion-mnist"});
//   auto settings = trireme::resolve({.model = "mlp", .epochs = 5, .zero = 3});
//   auto model = trireme::make_model(settings, data.parts.train->shape(), *world);
//   auto result = trireme::train(settings, model, data.parts, world);
//
// A model on a GPU is trained there (docs/gpu.md).
//
// Collective. `observer` may be null; give it to one rank. `stop` is asked between steps and
// between the batches of an evaluation; when it says yes on any rank, training ends in good order
// on all (an evaluation that was broken off counts for nothing). Throws DataError, GradientError (a
// step that is not finite, with step, rank and parameter), MemoryError (not even one sample fits),
// ConfigError, CheckpointError (one that cannot be read, or could not be written).
//
// With a folder for checkpoints, the same call resumes from the last one that was saved, on any
// number of ranks and at any stage, and is bit-identical to an uninterrupted run:
//
//   trireme::train(settings, model, data, world, nullptr, {}, {.folder = "run/checkpoints"});
//
// Settings that would change the result are refused by name, unless settings.allow_changes.
TrainResult train(const TrainSettings& settings,
                  const Trainable& model,
                  const Parts& data,
                  const std::shared_ptr<World>& world,
                  TrainObserver* observer = nullptr,
                  const std::function<bool()>& stop = {},
                  const TrainCheckpoints& checkpoints = {});

// The model that the settings name. At stage 3 the ranks of a machine build it in parts (see
// build_sharded), with the same weights. With settings.device = cuda it is moved to the GPU of this
// rank, which becomes the one that the process works on (use_gpu); auto is the CPU here.
// Collective.
Trainable make_model(const TrainSettings& settings, const SampleShape& shape, Communicator& ranks);

// Fills in missing values (settings.missing) and standardises (settings.normalise) both parts by
// the statistics of the training part, which the ranks compute together. Collective.
Parts prepared(const TrainSettings& settings, const Parts& data, Communicator& ranks);

// Of a cross-validation that was ended before its last fold, however it was ended.
struct EarlierFolds {
  // The result of a fold that had ended: it is not trained again. Has to say the same on all ranks.
  std::function<std::optional<TrainResult>(int fold)> result_of{};
  // Where a fold is saved, and goes on from where it was.
  std::function<TrainCheckpoints(int fold)> checkpoints_of{};
};

// k-fold cross-validation: trains settings.folds times, each time with another fold held out. The
// observer for each fold (null on ranks that do not report) comes from `observer_of`; `done` is
// told the result of each when it has ended. With `earlier`, the results are those of one that
// never was interrupted, to the last bit; folds that had ended with other data than `all`, in
// whatever sample, are refused (ConfigError). Collective.
std::vector<TrainResult> cross_validate(
    const TrainSettings& settings,
    const std::shared_ptr<const Dataset>& all,
    const std::function<std::shared_ptr<TrainObserver>(int fold, const Trainable& model)>&
        observer_of,
    const std::shared_ptr<World>& world,
    const std::function<bool()>& stop = {},
    const std::function<void(const TrainResult& fold)>& done = {},
    const EarlierFolds& earlier = {});

}  // namespace trireme
