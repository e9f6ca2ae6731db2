#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/drill_news.h"
#include "trireme/core/drill.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// What happens in a drill, on all machines, written down by the launcher of machine 0: who noticed
// what, and how long it took until the next step was kept. The file is whole at any time, so that
// it is when the job is killed.
class DrillBook {
 public:
  // `scale` has the job have so many more ranks, or less, from the next step on; what will happen,
  // or "no: " and why not. Throws ConfigError where the file cannot be written.
  DrillBook(const DrillOptions& options,
            bool several_machines,
            std::function<std::string(int more)> scale,
            std::function<void(const std::string&)> say);

  void take(const DrillNews& news);
  // Writes what is new.
  void turn();
  // The job has ended with this exit code.
  void finish(int code);

 private:
  struct Notice {
    std::string who;
    double seconds = 0;  // after the fault
    std::string how;
  };
  struct Fault {
    DrillNews what;
    std::int64_t step = 0;     // from 1; of a save, the steps that it holds
    std::int64_t reached = 0;  // steps that were begun
    std::int64_t epoch = 0;    // of the last step that was kept before
    std::vector<Notice> noticed;
    std::optional<double> recovered;  // seconds
    std::int64_t again = 0;           // steps
    std::string outcome;
    bool is_open = true;
  };

  void begin(const DrillNews& news);
  void take_step(const DrillNews& kept);
  void notice(Fault& fault, std::int64_t when, const std::string& who, const std::string& how);
  void close(Fault& fault, const DrillNews& kept);
  std::string launcher_of(int machine) const;
  void write() const;

  const DrillOptions options_;
  const bool several_machines_;
  const std::function<std::string(int)> scale_;
  const std::function<void(const std::string&)> say_;
  const std::int64_t began_;
  std::int64_t epoch_ = 0;  // of the last step that was kept
  std::int64_t kept_ = 0;   // steps
  std::vector<Fault> faults_;
  std::optional<int> code_;
  bool changed_ = true;
  mutable bool can_write_ = true;
};

}  // namespace trireme::detail
