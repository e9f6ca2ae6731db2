#pragma once

#include <cstdint>
#include <vector>

namespace trireme {

// Deals `micro_batches` to ranks of these speeds (in any unit, not all 0) so that the slowest is
// done as early as possible: each goes to the rank that would finish it first. Ranks of equal speed
// get counts that differ by at most one, the first ones more. A rank of speed 0 gets none.
std::vector<std::int64_t> deal_micro_batches(std::int64_t micro_batches,
                                             const std::vector<double>& speeds);

}  // namespace trireme
