#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "trireme/launch/launcher.h"

namespace trireme::tools {

// --supervise N.
struct SuperviseFlag {
  int restarts = 0;  // 0: not given
};
// `flag` outlives the parsing.
void add_supervise_option(CLI::App& app, SuperviseFlag& flag);

// Runs this very command without --supervise in a process of its own, and again when its launcher
// dies or it ends by a fault, with a pause before that grows; gives up after so many restarts
// within an hour. Success, wrong usage and a signal that asks to end are the end. Signals are
// passed on, and nothing that the job has started is left when it returns its exit code. Throws
// ConfigError for what it cannot supervise.
int supervise(const SuperviseFlag& flag, const LaunchOptions& launch);

}  // namespace trireme::tools
