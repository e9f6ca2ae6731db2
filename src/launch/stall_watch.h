#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/rank_process.h"

namespace trireme::detail {

// Note [stalls]
// A rank that trains makes marks in its pulse (core/pulse.h), or waits for another one. Whoever has
// done neither for a while is the one that the others wait for: it is stuck in code that is not
// ours, or its machine is. The rule is for ranks that have an engine: before, data may be read for
// hours, and afterwards the program does what it likes.
class StallWatch {
 public:
  // `ends` ranks that have stalled; else it only says so, once for each stall.
  StallWatch(double seconds, bool ends, std::function<void(const std::string&)> say);

  // `world_size` is for messages. `held_up`: nobody reads the job's output, so that ranks that have
  // something to say wait for that.
  void look(const std::vector<RankProcess>& ranks, int world_size, bool held_up);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Seen {
    std::uint64_t marks = 0;
    Time since;  // nothing has changed
    bool told = false;
  };

  bool is_excused(const RankProcess& rank) const;

  const std::chrono::duration<double> patience_;
  const bool ends_;
  const std::function<void(const std::string&)> say_;
  std::map<pid_t, Seen> seen_;
  Time last_look_ = std::chrono::steady_clock::now();
};

}  // namespace trireme::detail
