#include "parallel/gradient/block_runs.h"

#include <algorithm>

namespace trireme::detail {

std::vector<BlockRun> block_runs(const FlatLayout& layout, Range range, std::int64_t block) {
  std::vector<BlockRun> runs;
  for (const Piece& piece : layout.pieces(range)) {
    if (piece.numel == 0) {
      continue;
    }
    const std::int64_t first = piece.begin / block;
    const std::int64_t last = (piece.begin + piece.numel + block - 1) / block;
    const std::int64_t offset = layout.offset(piece.parameter);
    const std::int64_t end = std::min(last * block, layout.numel(piece.parameter));
    runs.push_back({piece.parameter, first, last - first, {offset + first * block, offset + end}});
  }
  return runs;
}

std::int64_t blocks_in(const std::vector<BlockRun>& runs) {
  std::int64_t count = 0;
  for (const BlockRun& run : runs) {
    count += run.count;
  }
  return count;
}

}  // namespace trireme::detail
