#pragma once

#include <cstdint>

#include "train/train_progress.h"

// How often the ranks of a run change while it trains, and what that costs: what the launcher of an
// elastic job tells each world, and what the run had before this job.

namespace trireme::detail {

// The steps from now on are those of this fold of a cross-validation.
void begin_fold(int fold);
// This process begins this step, counted from 1.
void begin_step_of_run(std::int64_t step);

class ChangesOfRun {
 public:
  // Nothing was kept of the run.
  void begin();
  // It goes on with what was kept, by this job or by an earlier one.
  void go_on(const TrainProgress& kept);
  // That was an earlier one, with another number of ranks.
  bool is_of_this_job() const { return of_this_job_; }
  void meet_anew(int ranks_then, int ranks_now);

  // Up to now, into what is kept and reported.
  void write_to(TrainProgress& progress) const;
  // This training of the job has ended: what comes is of the next.
  static void end();

 private:
  RankChanges before_{};  // and what this job had told by then, less: below 0 perhaps
  bool of_this_job_ = false;
};

}  // namespace trireme::detail
