#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/shard/flat_layout.h"
#include "trireme/shard/range.h"

namespace trireme {

// A run of a unit's gradients that is reduced in one go.
struct Bucket {
  std::size_t unit = 0;
  Range range;                // of the unit's flat buffer
  std::vector<Piece> pieces;  // the parameters, or parts of them, inside it
};

// Cuts units into buckets of at most `bucket_bytes`, in the order in which a backward pass fills
// them: the last unit first, each from its end to its beginning. Large parameters are cut too, so
// that the memory a bucket takes does not depend on the model; between blocks of so many elements,
// counted from the parameter's beginning, where they are not to be cut.
std::vector<Bucket> plan_buckets(const std::vector<FlatLayout>& units,
                                 std::size_t bucket_bytes,
                                 std::int64_t block = 1);

}  // namespace trireme
