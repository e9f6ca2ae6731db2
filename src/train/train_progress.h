#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/optim/schedule.h"
#include "trireme/settings/values.h"
#include "trireme/train/trainer.h"

namespace trireme::detail {

// Where a training is between two steps, beside the state of its engine: all that it takes to go on
// as if nothing had happened. Kept with every checkpoint.
struct TrainProgress {
  std::int64_t step = 0;         // steps taken
  std::int64_t position = 0;     // in the data
  std::int64_t micro_batch = 0;  // in force: found by trying, or made smaller; 0: choose anew

  // The data that the position is in.
  std::int64_t training_samples = 0;
  std::int64_t held_out_samples = 0;

  std::int64_t evaluated_step = 0;           // the last one after which there was an evaluation
  std::map<std::string, double> evaluation;  // its metrics
  std::int64_t best_step = 0;
  std::map<std::string, double> best;
  std::int64_t without_improvement = 0;  // evaluations since then
  ReduceOnPlateau::State plateau{};
  std::int64_t goal_step = 0;
  double goal_seconds = 0;

  // For the summary, which is about the whole run.
  double loss = 0;
  double seconds = 0;            // of the steps
  double run_seconds = 0;        // all there was between and around them, too
  double processor_seconds = 0;  // of a rank
  double comm_seconds = 0;
  double data_seconds = 0;
  double record_seconds = 0;
  double save_seconds = 0;
  double timed_seconds = 0;  // of the steps that count for throughput
  std::int64_t timed_samples = 0;
  std::int64_t untimed_steps = 0;  // before those; 0: not settled yet
  std::int64_t samples = 0;
  std::int64_t tensor_bytes = 0;
  std::int64_t threads = 0;  // of a rank
  // What else the bits depend on; 0: the checkpoint was saved before it was recorded.
  std::int64_t sum_group = 0;         // InitOptions::sum_group
  std::int64_t data_fingerprint = 0;  // of some samples, see fingerprint_of
  RankChanges rank_changes{};
  RankChanges told{};    // of these, what the launcher has told in the job with this number
  std::int64_t job = 0;  // 0: it was no elastic one
  std::vector<StepsOnRanks> steps_by_ranks{};
  CompressionUse compression{};  // of the rank that reports
  AveragingUse averaging{};      // what it sent, and for how long
  StaleUse stale{};
  std::vector<std::string> phase_changes{};  // TrainResult::phase_changes

  // Takes an evaluation after `after` steps into account, and decides by one of its metrics. True
  // where it is the best so far.
  bool judge(std::int64_t after,
             const std::map<std::string, double>& metrics,
             const std::string& by);
  // Notes when the last evaluation was the first that reached a goal.
  void aim(const Goal& goal, double now_seconds);

  // What a result says about the whole run.
  void summarise(TrainResult& result) const;

  // Every number comes back as the same one, also one that is not finite.
  std::string to_json() const;
  // Throws CheckpointError, which names `path`, for a text that is no progress.
  static TrainProgress parse(const std::string& text, const std::string& path);
};

// Tells data from other data with as many samples: some of them, evenly chosen, with their targets.
std::int64_t fingerprint_of(const Parts& data);

}  // namespace trireme::detail
