#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "collectives_bench.h"

// What the parts of `trireme bench collectives` hand each other.
//
// `bytes` is the whole: the buffer of all_reduce and broadcast, the input of reduce_scatter, the
// output of all_gather. `owned` memory is in a SharedBuffer.

namespace trireme::bench {

// One system's times in ms.
struct CollectivesSamples {
  std::string system;    // its name, version and what carries its data
  std::string settings;  // how it was told to do it
  std::map<std::tuple<std::string, long long, bool>, std::vector<double>> ms;  // op, bytes, owned

  // Adds what a rank or a peer has written.
  void collect(const std::string& path);
};

// What the options ask for.
std::vector<std::string> collective_ops(const CollectivesOptions& options);
std::vector<long long> collective_sizes(const CollectivesOptions& options);
// Both as arguments for the peers: "all_reduce,broadcast" and "4096,65536".
std::vector<std::string> peer_cases(const CollectivesOptions& options);

// This program as a rank of the benchmark: does all `rounds`, rank 0 writes to `output`.
std::vector<std::string> collectives_rank_command(const CollectivesOptions& options,
                                                  int rounds,
                                                  const std::string& output);
int run_collectives_rank(const CollectivesOptions& options);

// One network interface against two, each limited, on a test bed of two machines.
int run_rails_bench(const CollectivesOptions& options);

}  // namespace trireme::bench
