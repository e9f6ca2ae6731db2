#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/drill_book.h"
#include "launch/drill_watch.h"
#include "launch/fleet.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// The drill of a job as the launcher of one machine takes part in it: it is carried out on all of
// them, and all tell the one that decides what happens there, which keeps the book.
class JobDrill {
 public:
  // How often `turn` is to be called at least.
  static constexpr std::int64_t kTurnMilliseconds = 20;

  // `drill`: as plan_of has it. What is thrown: as of DrillBook and DrillWatch.
  JobDrill(const DrillOptions& drill, const LaunchOptions& launch, DrillBook::Hands hands);

  int descriptor() const { return watch_.descriptor(); }

  // The machines have met, for the first time or again; null where there is only this one.
  void begin(const Fleet* fleet);
  // `fleet`: null where the job has one machine. `failures`: of ranks that have just ended.
  void turn(const std::vector<RankProcess>& ranks,
            const std::vector<JobEvent>& failures,
            Fleet* fleet);
  // What another launcher has said of it (LauncherWord::kDrill).
  void take(const Fleet::Mail& mail, Fleet& fleet);
  // Before an epoch begins: nobody in it suffers again what others have.
  void begin_world(Fleet* fleet);
  // A machine is lost; so is the leader, or this one has lost it.
  void machine_lost(int machine, const std::string& how);
  // The fault that this launcher is to suffer, if there is one.
  void suffer(Fleet* fleet);
  // Another launcher goes on with the book.
  void hand_over();
  // The job has ended with this exit code.
  void finish(const std::vector<RankProcess>& ranks, int code);

  // As machines tell each other what they drill; empty: nothing.
  static std::string text_of(const std::optional<DrillOptions>& options);
  // What this machine drills, `text` being what machine 0 has told. Throws ConfigError where it was
  // asked for something else.
  static std::optional<DrillOptions> plan_of(const LaunchOptions& launch, const std::string& text);

 private:
  struct Lost {
    int machine;
    std::int64_t nanoseconds;
    std::string how;
  };

  void enter(const DrillNews& news, Fleet* fleet);
  void strike(const DrillNews& fault, Fleet* fleet);
  DrillOrder order() const;

  const DrillOptions drill_;
  const DrillBook::Hands hands_;
  const bool has_store_;
  const int machine_;
  DrillWatch watch_;
  std::optional<DrillBook> book_;      // of the launcher that decides
  DrillOrder happened_;                // on all machines, as far as is known here
  std::optional<std::int64_t> began_;  // the drill, by the clock here
  std::optional<Lost> lost_;           // the last leader
  std::optional<DrillKind> struck_;    // what this launcher is to suffer
};

}  // namespace trireme::detail
