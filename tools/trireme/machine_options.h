#pragma once

#include <CLI/CLI.hpp>

#include "trireme/launch/launcher.h"

namespace trireme::tools {

// --nnodes, --node-rank, --rendezvous and what else a job over several machines needs, the same for
// every command that starts ranks. `launch` outlives the parsing.
void add_machine_options(CLI::App& app, LaunchOptions& launch);

}  // namespace trireme::tools
