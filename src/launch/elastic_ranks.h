#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "launch/elastic_words.h"
#include "launch/local_ranks.h"
#include "trireme/core/deadline.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// The ranks of this machine in an elastic job: carries out what is decided about their epochs, and
// ends those that would keep the others waiting.
class ElasticRanks {
 public:
  // `ranks` outlives it.
  ElasticRanks(const ElasticOptions& options,
               LocalRanks& ranks,
               std::function<void(const std::string&)> say)
      : options_(options), ranks_(ranks), say_(std::move(say)) {}

  void end_epoch(const EpochEnd& end);
  void begin_epoch(const EpochOrder& order, int machine);
  // Hears what ranks ask for, and looks after those that are stopped or have not noticed a loss.
  void turn();
  MachineStatus status() const { return ranks_.status(); }
  // With what is known here of why they ended.
  std::vector<JobEvent> explained(std::vector<JobEvent> failures) const;

 private:
  using Time = std::chrono::steady_clock::time_point;

  void end_stopped();
  void end_stalled();
  void end(const RankProcess& rank, const std::string& why);

  const ElasticOptions options_;
  LocalRanks& ranks_;
  std::function<void(const std::string&)> say_;
  std::set<pid_t> ended_;             // by us
  std::set<pid_t> stalled_;           // of these, because they had not noticed a loss
  std::optional<Deadline> patience_;  // with those that have not noticed a loss
  Time last_turn_ = std::chrono::steady_clock::now();
};

}  // namespace trireme::detail
