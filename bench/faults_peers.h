#pragma once

#include "faults_bench.h"

namespace trireme::bench {

// trireme bench faults --peers: one rank after another is killed, of ours and of theirs; how long
// it takes until the next step is done and until the training is where it was, and how many steps
// are computed again. Returns the exit code.
int run_faults_peers(const FaultsBenchOptions& options);

}  // namespace trireme::bench
