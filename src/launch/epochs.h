#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/job_event.h"
#include "launch/local_ranks.h"
#include "trireme/core/deadline.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// The epochs of an elastic job. A loss ends one; the next begins when every rank that is left has
// asked for it, so that nobody who is not a member of it still runs.
class Epochs {
 public:
  // `ranks` outlives it.
  Epochs(const ElasticOptions& options,
         LocalRanks& ranks,
         std::function<void(const std::string&)> say);

  // Takes the failures that one look has found. False: the job does not outlive them.
  bool outlives(const std::vector<JobEvent>& failures);
  // Hears what ranks ask for, and begins the next epoch when it can. Why the job cannot go on;
  // empty: it does.
  std::string turn();
  // Has so many ranks from the next epoch on, which begins after the step at hand. What will
  // happen, or "no: " and why not.
  std::string scale(int ranks);
  // The job was asked to end: ranks that meet anew do so to end together, and none is started.
  void end_in_good_order();
  // Ranks are still to be started.
  bool is_forming() const { return forming_; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  bool outlives(const JobEvent& failure);
  void end_epoch();
  std::vector<std::size_t> members_of_next() const;
  void begin();
  void end_stopped();
  void end_stalled();
  void end(const RankProcess& rank, const std::string& why);
  int running() const;
  bool someone_has_finished() const;
  std::string why_too_few() const;

  const ElasticOptions options_;
  LocalRanks& ranks_;
  std::function<void(const std::string&)> say_;
  int restarts_left_;
  int losses_ = 0;                       // in this epoch
  int vain_epochs_ = 0;                  // in a row, that ended without a loss and kept nothing
  std::optional<int> wanted_;            // ranks, from the next epoch on
  std::set<std::size_t> started_again_;  // places whose process is started anew
  std::set<pid_t> ended_;                // by us
  bool ends_ = false;                    // it was asked to
  bool forming_ = false;                 // this epoch has ended, or is to end
  std::optional<Deadline> patience_;     // with those that have not noticed a loss
  Time last_turn_ = std::chrono::steady_clock::now();
};

}  // namespace trireme::detail
