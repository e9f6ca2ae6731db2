#include "parallel/memory/group_totals.h"

#include <algorithm>

#include "parallel/memory/runs.h"

namespace trireme::detail {

GroupTotals::GroupTotals(const PartContext& context, GradientSums& sums)
    : context_(context),
      sums_(sums),
      units_(context.plan.units.size()),
      in_totals_(context.plan.parameters.size(), 0) {}

void GroupTotals::make() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (context_.plan.units[u].trainable && units_[u].memory.size_bytes() == 0) {
      const std::size_t bytes = sums_.mine(u).size_bytes();
      if (bytes > 0) {
        units_[u] = {device::Buffer(bytes, context_.plan.device),
                     context_.ledger.charge(MemoryCategory::kGradients, bytes)};
      }
    }
  }
}

Span GroupTotals::run(std::size_t unit) const {
  const Span like = sums_.mine(unit);
  return {units_[unit].memory.data(), like.numel(), like.dtype(), {}, like.device()};
}

void GroupTotals::add(const std::vector<char>& in_sums) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!context_.plan.units[u].trainable) {
      continue;
    }
    const Range mine = context_.plan.ownership.mine(u);
    for (const Piece& piece : context_.plan.units[u].layout.pieces(mine)) {
      const std::size_t parameter = context_.plan.parameter_of(u, piece);
      const Range range{piece.offset - mine.begin, piece.offset - mine.begin + piece.numel};
      if (in_sums[parameter]) {
        const Span to = part_of(run(u), range);
        stream_for(to).add(to, part_of(sums_.mine(u), range), !in_totals_[parameter]);
      }
    }
  }
  // A parameter may have pieces in several places: it counts when all of them have been added.
  for (std::size_t p = 0; p < in_sums.size(); ++p) {
    in_totals_[p] |= in_sums[p];
  }
}

void GroupTotals::move_to_sums() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].memory.size_bytes() > 0) {
      stream_for(run(u)).copy(sums_.mine(u), run(u));
    }
  }
}

void GroupTotals::reset() {
  std::fill(in_totals_.begin(), in_totals_.end(), 0);
}

}  // namespace trireme::detail
