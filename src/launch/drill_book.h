#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/job_event.h"
#include "launch/rank_process.h"
#include "trireme/core/drill.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// A drill as the launcher sees it: hears of the faults that ranks suffer, does what a rank cannot
// do to itself, and writes down who noticed what, and how long it took until the next step was
// kept. The file is whole at any time, so that it is when the job is killed.
class DrillBook {
 public:
  // How often `turn` is to be called at least.
  static constexpr std::int64_t kTurnMilliseconds = 20;

  // `scale` has the job have so many more ranks, or less, from the next step on; what will happen,
  // or "no: " and why not. Throws ConfigError where there is no memory, or the file cannot be
  // written.
  DrillBook(const DrillOptions& options,
            std::function<std::string(int more)> scale,
            std::function<void(const std::string&)> say);

  int descriptor() const { return memory_.descriptor(); }

  // `failures`: of ranks that have just ended.
  void turn(const std::vector<RankProcess>& ranks, const std::vector<JobEvent>& failures);
  // The job has ended with this exit code.
  void finish(int code);

 private:
  struct Notice {
    std::string who;
    double seconds = 0;  // after the fault
    std::string how;
  };
  struct Fault {
    DrillKind kind{};
    PulsePhase phase{};
    std::int64_t step = 0;     // from 1; of a save, the steps that it holds
    std::int64_t reached = 0;  // steps that were begun
    int rank = 0;
    int ranks = 0;
    pid_t pid = 0;
    std::int64_t nanoseconds = 0;
    std::int64_t epoch = 0;             // of the last step that was kept before
    std::optional<std::int64_t> go_on;  // nanoseconds at which a stopped rank does
    std::vector<Notice> noticed;
    std::optional<double> recovered;  // seconds
    std::int64_t again = 0;           // steps
    std::string outcome;
    bool is_open = true;
  };

  void hear_of_faults();
  void begin(Fault fault);
  void let_go_on(const std::vector<RankProcess>& ranks);
  void take_notice(const std::vector<RankProcess>& ranks, const std::vector<JobEvent>& failures);
  void notice(Fault& fault, const std::string& who, const std::string& how);
  void hear_of_commits();
  void close(Fault& fault, const DrillPage::Commit& commit);
  void write() const;

  const DrillOptions options_;
  const DrillPlan plan_;
  const DrillMemory memory_;
  const std::function<std::string(int)> scale_;
  const std::function<void(const std::string&)> say_;
  const std::int64_t began_;
  std::uint32_t heard_ = 0;
  std::uint64_t commits_ = 0;
  std::int64_t epoch_ = 0;
  std::vector<Fault> faults_;
  std::optional<int> code_;
  bool changed_ = true;
  mutable bool can_write_ = true;
};

}  // namespace trireme::detail
