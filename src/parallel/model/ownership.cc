#include "parallel/model/ownership.h"

#include <algorithm>

#include "trireme/core/error.h"
#include "trireme/shard/partition.h"

namespace trireme::detail {
namespace {

std::vector<Range> divide_anywhere(const Unit& unit,
                                   const std::vector<Parameter>& table,
                                   const EngineOptions& options,
                                   int world) {
  if (!options.shares.empty()) {
    TRIREME_CHECK(static_cast<int>(options.shares.size()) == world,
                  "EngineOptions::shares has {} entries for {} ranks: give one for each",
                  {options.shares.size(), world});
    TRIREME_CHECK(options.split == Split::kElement,
                  "EngineOptions::shares divides by element: leave split at Split::kElement");
    return partition_by_weight(unit.layout, options.shares);
  }
  switch (options.split) {
    case Split::kLayer:
      return partition_by_layer(unit.layout, world);
    case Split::kDimension: {
      std::vector<std::int64_t> rows;
      for (const std::size_t parameter : unit.parameters) {
        const Parameter& p = table[parameter];
        rows.push_back(p.sizes.empty() || p.sizes[0] == 0
                           ? std::max<std::int64_t>(p.numel, 1)
                           : std::max<std::int64_t>(p.numel / p.sizes[0], 1));
      }
      return partition_by_dimension(unit.layout, rows, world);
    }
    default:
      return partition_by_element(unit.layout, world);
  }
}

// Blocks of rounded parameters have one owner.
std::vector<Range> divide(const Unit& unit,
                          const std::vector<Parameter>& table,
                          const EngineOptions& options,
                          int world) {
  const std::vector<Range> ranges = divide_anywhere(unit, table, options, world);
  return unit.rounding ? moved_to_rows(unit.layout, ranges, unit.rounding->blocks()) : ranges;
}

ParameterHome home_of(const EngineOptions& options, const RankGroup& owners) {
  if (options.zero < 3) {
    return ParameterHome::kReplicated;
  }
  if (owners.one_machine) {
    // A GPU reads what another has over the link between them, at every use: one copy is better.
    const bool copied = options.placement == Placement::kCopied ||
                        (options.placement == Placement::kAutomatic && !owners.one_device);
    return copied ? ParameterHome::kCopied : ParameterHome::kMapped;
  }
  TRIREME_CHECK(options.placement != Placement::kMapped,
                "EngineOptions::placement: parameters can be mapped only if all ranks share a "
                "machine, and these are on several: use kCopied or kAutomatic");
  return ParameterHome::kScattered;
}

}  // namespace

Ownership::Ownership(const EngineOptions& options,
                     const RankGroup& ranks,
                     const RankGroup& owners,
                     const std::vector<Unit>& units,
                     const std::vector<Parameter>& parameters)
    : stage_(options.zero), ranks_(ranks), owners_(owners) {
  for (const Unit& unit : units) {
    units_.push_back({unit.layout.total_numel(), divide(unit, parameters, options, owners.size)});
  }
  home_ = home_of(options, owners);
}

SumsReach Ownership::reach() const {
  if (stage_ > 0) {
    return SumsReach::kOwners;
  }
  // With DDP everyone updates everything. On one machine sums are read where they are, in the
  // owner's memory: a copy of them would only be read once.
  return ranks_.size > 1 && ranks_.one_machine ? SumsReach::kPeers : SumsReach::kEverywhere;
}

int Ownership::owner_of(std::size_t unit, std::int64_t element) const {
  const auto owner = std::ranges::find_if(ranges(unit), [&](const Range& range) {
    return element >= range.begin && element < range.end;
  });
  return static_cast<int>(owner - ranges(unit).begin());
}

Counts Ownership::counts(std::size_t unit, Range within) const {
  Counts counts;
  for (const Range& range : ranges(unit)) {
    counts.push_back(intersection(range, within).size());
  }
  return counts;
}

}  // namespace trireme::detail
