#pragma once

#include "step_measured.h"
#include "step_rank.h"

// `trireme bench step` on a test bed of machines. Both print a table and return an exit code.

namespace trireme::bench {

// Steps beside PyTorch over Gloo, on the same interfaces, in turns.
int run_step_machines(const StepOptions& options, const Tuning& tuning);

// What a step sends from machine to machine, with two ranks on each of two machines: sums in groups
// of a machine's ranks, and flat.
int run_step_traffic(const StepOptions& options, const Tuning& tuning);

}  // namespace trireme::bench
