#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recoveries.h"

namespace trireme::bench {

// What `trireme train` is told for a drill whose faults are at marked points of the ranks' own
// course: of a step, of keeping its state, of checkpoints, of taking over; one every so many steps,
// more or less.
std::vector<std::string> drill_of_points(std::uint64_t seed, int every);

// The faults that the drill of a run has recorded, and that were recovered from, by point.
std::vector<Recovery> points_in(const std::string& run);

// How often they came to what: "1 not possible, 29 recovered".
std::string outcomes_text(const std::string& run);

// How soon its launcher knew of ranks that were killed.
std::string noticed_text(const std::string& run);

}  // namespace trireme::bench
