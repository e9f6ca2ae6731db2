#pragma once

#include <vector>

#include "doctor/finding.h"
#include "trireme/comm/communicator.h"

namespace trireme::detail {

// How far a machine's clock is ahead of machine 0's.
struct ClockDifference {
  double seconds = 0;
  double uncertainty = 0;  // the truth is not further away than this
};

// One exchange in seconds: machine 0's clock before and after, the other's in between.
struct ClockSample {
  double before = 0;
  double other = 0;
  double after = 0;
};

// Cristian's method: the other clock was read somewhere between before and after, so the shortest
// exchange says most.
ClockDifference estimate_difference(const std::vector<ClockSample>& samples);

// One entry per machine; that of machine 0 is zero. Collective; the same on every rank.
std::vector<ClockDifference> measure_clocks(Communicator& world,
                                            const std::vector<int>& machine_of);

// The clocks of the machines; nothing for one machine.
std::vector<Finding> judge_clocks(const std::vector<ClockDifference>& clocks);

}  // namespace trireme::detail
