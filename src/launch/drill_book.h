#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/drill_news.h"
#include "launch/drill_record.h"
#include "trireme/core/drill.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// What happens in a drill, on all machines, written down by the launcher that decides: who noticed
// what, and how long it took until the next step was kept. The file is whole at any time, so that
// it is when the job is killed, or when this launcher is and another goes on with it.
class DrillBook {
 public:
  struct Hands {
    // Has the job have so many more ranks, or less, from the next step on; what will happen, or
    // "no: " and why not.
    std::function<std::string(int more)> scale;
    // Why that launcher is not to suffer this now; empty: the job outlives it.
    std::function<std::string(int machine, const DrillFault& fault)> objection;
    // The world at hand, and which of its ranks are on a machine.
    struct Part {
      std::int64_t epoch = 0;
      int first_rank = 0;
      int ranks = 0;
    };
    std::function<Part(int machine)> part_of_world;
    std::function<void(const std::string&)> say;
  };
  struct Place {
    int machine = -1;  // this one; -1 where there is no other
    std::string job;   // of which another launcher may have kept the book before; else empty
    std::int64_t first_epoch = 0;       // those before it are of other launchers
    std::optional<std::int64_t> began;  // the drill, by the clock here, where that is known
  };
  // Throws ConfigError where the file cannot be written.
  DrillBook(const DrillOptions& options, Place place, Hands hands);

  void take(const DrillNews& news);
  // Ranks have begun so many steps, in the world that ends.
  void reach(std::int64_t steps);
  // Writes what is new.
  void turn();
  // The job has ended with this exit code.
  void finish(int code);

  std::int64_t began() const { return began_; }
  // The fault of a launcher that was taken last, where it is to be carried out.
  std::optional<DrillNews> take_strike() { return std::exchange(strike_, std::nullopt); }

 private:
  bool go_on();
  void begin(const DrillNews& news);
  std::string begin_launchers_fault(DrillEntry& entry);
  void take_step(const DrillNews& kept);
  bool has_gone_on(DrillEntry& fault, std::int64_t when) const;
  void notice(DrillEntry& entry, std::int64_t when, const std::string& who, const std::string& how);
  void close(DrillEntry& entry, const DrillNews& kept);
  std::string launcher_of(int machine) const;
  void write() const;

  const DrillOptions options_;
  const DrillPlan plan_;
  const Place place_;
  const Hands hands_;
  std::int64_t began_;
  std::int64_t epoch_;     // of the last step that was kept
  std::int64_t kept_ = 0;  // steps
  std::vector<DrillEntry> entries_;
  std::optional<DrillNews> strike_;
  std::optional<int> code_;
  bool changed_ = true;
  mutable bool can_write_ = true;
};

}  // namespace trireme::detail
