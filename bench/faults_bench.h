#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::bench {

struct FaultsBenchOptions {
  int ranks = 4;
  int faults = 50;
  int every = 0;  // steps between two faults, on average; 0: as many as the kind of faults likes
  int zero = 3;
  std::uint64_t seed = 1;
  bool points = false;  // faults at marked points of the ranks' own course, not at random instants
  bool peers = false;
  int setting = 0;                    // of bench/peers/step_common.py, with `peers`
  std::vector<std::string> settings;  // more of them, for trireme train
  std::string json_path;
  std::string command_line;
};

// trireme bench faults: an elastic training in which ranks are killed and stopped, and their number
// changes, at random; how long each takes until the next step is done, how many steps are computed
// again, and whether the weights are those of the same training in peace. Returns the exit code: 1
// where they are not.
int run_faults_bench(const FaultsBenchOptions& options);

}  // namespace trireme::bench
