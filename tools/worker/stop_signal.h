#pragma once

#include "trireme/comm/world.h"

namespace trireme::worker {

// From here on the first signal asks for an orderly end, between steps; the launcher kills where
// that takes too long.
void watch_signals();
// Whether there was one.
bool wants_stop();

// The exit code of a job that has ended because of signals. Where one rank alone was asked to end,
// the job was: all end as it does, and rank 0 says which it was. Collective.
int exit_code_of_stop(World& world);

}  // namespace trireme::worker
