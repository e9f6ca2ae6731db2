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

// The drill of a job as the launcher of one machine takes part in it: machine 0's plan is carried
// out on all of them, and all tell it what happens there.
class JobDrill {
 public:
  // How often `turn` is to be called at least.
  static constexpr std::int64_t kTurnMilliseconds = 20;

  // `drill`: as plan_of has it. `scale`, `say` and what is thrown: as of DrillBook and DrillWatch.
  JobDrill(const DrillOptions& drill,
           const LaunchOptions& launch,
           std::function<std::string(int more)> scale,
           std::function<void(const std::string&)> say);

  int descriptor() const { return watch_.descriptor(); }

  // `fleet`: null where the job has one machine. `failures`: of ranks that have just ended.
  void turn(const std::vector<RankProcess>& ranks,
            const std::vector<JobEvent>& failures,
            Fleet* fleet);
  // What another launcher has said of it (LauncherWord::kDrill).
  void take(const Fleet::Mail& mail, Fleet& fleet);
  // Before an epoch begins: nobody in it suffers again what others have.
  void tell_all(Fleet& fleet) const;
  // The job has ended with this exit code.
  void finish(const std::vector<RankProcess>& ranks, int code);

  // As machine 0 tells the others what it drills; empty: nothing.
  static std::string text_of(const std::optional<DrillOptions>& options);
  // What this machine drills, `text` being what machine 0 has told. Throws ConfigError where it was
  // asked for something else.
  static std::optional<DrillOptions> plan_of(const LaunchOptions& launch, const std::string& text);

 private:
  void enter(const DrillNews& news, Fleet* fleet);

  DrillWatch watch_;
  std::optional<DrillBook> book_;  // on machine 0
  DrillOrder happened_;            // on all machines, as far as machine 0 knows
};

}  // namespace trireme::detail
