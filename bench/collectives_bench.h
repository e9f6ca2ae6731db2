#pragma once

#include <string>
#include <vector>

#include "trireme/launch/launcher.h"

namespace trireme::bench {

struct CollectivesOptions {
  CollectivesOptions() { launch.ranks = 0; }

  // Where and how the ranks run: nodes, node_rank and rendezvous for several machines by hand, and
  // how they talk to each other. Ranks 0: two on one machine, one on each of several.
  LaunchOptions launch;
  // A test bed of so many machines, on this host. 0: none.
  int machines = 0;
  bool rails = false;  // one interface against two, on a test bed
  bool peers = false;
  int rounds = 3;
  std::vector<std::string> ops;  // empty: all
  std::vector<long long> sizes;  // in bytes; empty: 4 KiB to 64 MiB
  std::string json_path;
  std::string command_line;
  // Set for the ranks that the benchmark starts: where rank 0 writes its samples.
  std::string worker_output;
};

// Runs the benchmark, prints the table, and writes the JSON. Returns the exit code.
int run_collectives_bench(const CollectivesOptions& options);

}  // namespace trireme::bench
