#pragma once

#include <cstdint>

#include "trireme/core/error.h"

namespace trireme {

// Where the parameters of stage 3 live.
enum class Placement {
  kAutomatic,  // mapped if all ranks share a machine, and where that has GPUs, one of them
  kMapped,     // one physical copy that every rank of the machine reads; nothing is gathered
  kCopied,     // each rank holds its part; units are put together for use and released after it
};

// In which order a step's micro-batches are added up (docs/parity.md).
enum class SumOrder {
  kChained,     // one chain over all of them: the same bits at every world size
  kLocalFirst,  // each rank adds up its own, then the ranks' sums: one communication per step
};

// What an update does to the rows of an Embedding with sparse = true that no micro-batch of a step
// has looked up.
enum class SparseUpdate {
  // The same as with dense gradients, of which theirs is zero: moments decay, and move the weights.
  kExact,
  // Nothing: neither the row nor its states change, and there is no weight decay of it. For rules
  // that take every element for itself; steps are counted for the whole parameter. What
  // torch.optim.SparseAdam does.
  kLazy,
};

// Throws ConfigError where a placement of parameters is given for a stage that divides none.
// `name`: what the caller calls it.
inline void check_placement(const char* name, Placement placement, std::int64_t zero) {
  const bool fits = placement == Placement::kAutomatic || zero == 3;
  TRIREME_CHECK(fits, name, ": it applies to stage 3 only, found zero = ", zero);
}

}  // namespace trireme
