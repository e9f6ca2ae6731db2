#include "parallel/gradient/sum_blocks.h"

#include "parallel/gradient/block_runs.h"
#include "parallel/memory/runs.h"

namespace trireme::detail {

SumBlocks::SumBlocks(const PartContext& context, GradientSums& sums, std::int64_t block)
    : sums_(sums), units_(context.plan.units.size()) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Range own = context.plan.ownership.mine(u);
    Ends& ends = units_[u];
    ends.own = own;
    ends.begin = own.begin;
    // A block is decoded as a whole, so both owners of a block that is divided add it up.
    const auto runs = block_runs(context.plan.units[u].layout, own, block);
    if (!runs.empty() && runs.front().range.begin < own.begin) {
      ends.begin = runs.front().range.begin;
      ends.head.resize(static_cast<std::size_t>(own.begin - ends.begin));
    }
    if (!runs.empty() && runs.back().range.end > own.end) {
      ends.tail.resize(static_cast<std::size_t>(runs.back().range.end - own.end));
    }
  }
}

Range SumBlocks::held(std::size_t unit) const {
  const Ends& ends = units_[unit];
  return {ends.begin, ends.own.end + static_cast<std::int64_t>(ends.tail.size())};
}

std::vector<SumBlocks::Part> SumBlocks::parts(std::size_t unit, Range range) const {
  Ends& ends = units_[unit];
  std::vector<Part> parts;
  const auto end_part = [&](std::vector<float>& memory, Range whole) {
    const Range part = intersection(range, whole);
    if (!part.empty()) {
      parts.push_back({{memory.data() + (part.begin - whole.begin), part.size(), Dtype::kFloat32},
                       part.begin - range.begin});
    }
  };
  end_part(ends.head, {ends.begin, ends.own.begin});
  const Range own = intersection(range, ends.own);
  if (!own.empty()) {
    parts.push_back({sums_.at(unit, own), own.begin - range.begin});
  }
  end_part(ends.tail, {ends.own.end, held(unit).end});
  return parts;
}

Span SumBlocks::place(std::size_t unit, Range range) const {
  const std::vector<Part> found = parts(unit, range);
  return found.size() == 1 ? found.front().run : Span();
}

void SumBlocks::add(std::size_t unit, Range range, const float* term, bool first) {
  for (const Part& part : parts(unit, range)) {
    device::host().add(part.run, {term + part.at, part.run.numel(), Dtype::kFloat32}, first);
  }
}

void SumBlocks::read(std::size_t unit, Range range, float* to) const {
  for (const Part& part : parts(unit, range)) {
    device::host().copy({to + part.at, part.run.numel(), Dtype::kFloat32}, part.run);
  }
}

}  // namespace trireme::detail
