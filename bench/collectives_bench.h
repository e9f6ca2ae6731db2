#pragma once

#include <string>

namespace trireme::bench {

struct CollectivesOptions {
  int ranks = 2;
  bool peers = false;
  int rounds = 3;
  std::string json_path;
  // Set for the ranks that the benchmark starts: where rank 0 writes its samples.
  std::string worker_output;
};

// Runs the benchmark, prints the table, and writes the JSON. Returns the exit code.
int run_collectives_bench(const CollectivesOptions& options);

}  // namespace trireme::bench
