#pragma once

#include <cstdint>
#include <vector>

// Ranks that are slow on purpose, and what arithmetic says of a training with them.

namespace trireme::bench {

// How long a rank's micro-batches take: slowness is sleep, so that ranks do not take processors
// from one another. It follows from the numbers below and not from the clock, so that all systems
// have the same, and it can be computed beforehand.
struct Pace {
  double ms = 0;       // of a micro-batch, at least
  int slow_rank = -1;  // whose micro-batches take so many times as long, in every step; -1: none
  double factor = 1;
  double probability = 0;  // of each micro-batch, to take so many times `ms` longer
  double stall = 10;
  std::uint64_t seed = 1;

  // Stalls of one, 1 or 0. Steps before 0 have none.
  double stalls(int rank, std::int64_t step) const;
  // How long one is to take.
  double milliseconds(int rank, std::int64_t step) const;
};

// How long it takes until all ranks are done, where that is all that they wait for: a rank may
// begin its step c when all have done their step c - 1 - `bound`, and then takes
// `durations[rank][c]`. 0: they wait for the slowest in every step.
double time_until_done(const std::vector<std::vector<double>>& durations, int bound);

}  // namespace trireme::bench
