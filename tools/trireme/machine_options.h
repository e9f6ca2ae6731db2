#pragma once

#include <CLI/CLI.hpp>

#include "trireme/launch/launcher.h"

namespace trireme::tools {

// --nnodes, --node-rank, --rendezvous and what else a job over several machines needs, the same for
// every command that starts ranks. `launch` outlives the parsing.
void add_machine_options(CLI::App& app, LaunchOptions& launch);
// --store and what belongs to it, for commands whose jobs can be elastic.
void add_store_options(CLI::App& app, LaunchOptions& launch);

// Throws ConfigError where ranks that a launcher of ours starts are to communicate through MPI.
void check_own_ranks(const LaunchOptions& launch);

// --elastic, --restart, --heartbeat, --grace, --stall and --redundancy.
struct ElasticFlags {
  std::string range;  // "MIN:MAX"
  std::optional<int> restarts;
  std::optional<double> heartbeat;
  std::optional<double> stall;
  std::optional<double> grace;
  std::optional<int> redundancy;
};
// `flags` outlives the parsing.
void add_elastic_options(CLI::App& app, ElasticFlags& flags);
// What the flags say of a job whose number of ranks is `launch.ranks`, or 0 where that was not
// said: it has MAX then. Restarts alone keep that number.
void apply(const ElasticFlags& flags, LaunchOptions& launch);

}  // namespace trireme::tools
