#pragma once

#include <vector>

namespace trireme::detail {

// Where one rank runs.
struct Placement {
  std::vector<int> cpus;  // empty: wherever the launcher may
  int threads = 1;
};

// Deals the processors out to the ranks: contiguous slices of `cpus` where there is one for each,
// else none (the kernel shares them better than a fixed pinning would). `quota` is the control
// group's limit on processor time in processors, 0 for none.
std::vector<Placement> place_ranks(int ranks, const std::vector<int>& cpus, int quota);

}  // namespace trireme::detail
