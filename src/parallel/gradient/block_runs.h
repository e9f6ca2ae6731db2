#pragma once

#include <cstdint>
#include <vector>

#include "trireme/shard/flat_layout.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// Whole blocks of one parameter, one after another.
struct BlockRun {
  std::size_t parameter = 0;  // in the unit
  std::int64_t first = 0;     // block, counted from the parameter's beginning
  std::int64_t count = 0;     // of blocks
  Range range;                // their elements in the unit; a parameter's last block may be short

  bool operator==(const BlockRun&) const = default;
};

// The blocks that reach into `range` of a unit. Blocks are counted from each parameter's beginning,
// so that they are the same however a unit is divided; one that reaches across the border between
// two owners is in the lists of both.
std::vector<BlockRun> block_runs(const FlatLayout& layout, Range range, std::int64_t block);

std::int64_t blocks_in(const std::vector<BlockRun>& runs);

}  // namespace trireme::detail
