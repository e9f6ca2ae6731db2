#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "launch/drill_news.h"
#include "launch/job_event.h"
#include "launch/rank_process.h"
#include "trireme/core/drill.h"

namespace trireme::detail {

// A drill on one machine: holds the memory that its ranks share, sees what happens to them, and has
// those that are stopped go on.
class DrillWatch {
 public:
  // Throws ConfigError where there is no memory.
  DrillWatch(const DrillPlan& plan, int machine) : plan_(plan), memory_(plan), machine_(machine) {}

  int descriptor() const { return memory_.descriptor(); }
  const DrillPlan& plan() const { return plan_; }

  // What is new; steps that were kept come first. `failures`: of ranks that have just ended.
  std::vector<DrillNews> turn(const std::vector<RankProcess>& ranks,
                              const std::vector<JobEvent>& failures);
  void obey(const DrillOrder& order);
  // What has happened, as far as this machine knows.
  DrillOrder happened() const;
  // Steps that any rank here has begun.
  std::int64_t begun() const { return memory_.page().begun.load(); }

 private:
  void hear_of_steps(std::vector<DrillNews>& news);
  void hear_of_faults(std::vector<DrillNews>& news);
  void hear_of_ranks(const std::vector<RankProcess>& ranks,
                     const std::vector<JobEvent>& failures,
                     std::vector<DrillNews>& news);
  void let_go_on(const std::vector<RankProcess>& ranks);

  const DrillPlan plan_;
  const DrillMemory memory_;
  const int machine_;
  std::uint32_t heard_ = 0;
  std::uint64_t kept_ = 0;
  std::set<std::pair<pid_t, int>> blames_;  // who has lost whom, in the world at hand
  struct Stopped {
    pid_t pid;
    std::int64_t until;  // nanoseconds
  };
  std::vector<Stopped> stopped_;
};

}  // namespace trireme::detail
