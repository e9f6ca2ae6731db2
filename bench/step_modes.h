#pragma once

#include "step_measured.h"
#include "step_rank.h"

namespace trireme::bench {

// `trireme bench step` on this machine: every mode, beside PyTorch and DeepSpeed. Prints tables and
// returns an exit code.
int run_step_modes(const StepOptions& options, const Tuning& tuning);

}  // namespace trireme::bench
