#include "parallel/gradient_sums.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "parallel/accumulate.h"
#include "parallel/same_on_all_ranks.h"

namespace trireme::detail {

GradientSums::GradientSums(const std::vector<Unit>& units,
                           const EngineOptions& options,
                           Communicator& ranks,
                           Communicator& owners,
                           MemoryLedger& ledger)
    : units_(units),
      ranks_(ranks),
      owners_(owners),
      ledger_(ledger),
      reads_peers_(options.zero == 0 && ranks.size() > 1 && ranks.one_machine()),
      sums_(units.size()) {
  const bool alone = ranks.size() == 1;
  const bool whole_memory = alone || options.zero <= 1;
  const auto range_of = [&](std::size_t u) {
    return whole_memory ? Range{0, units[u].layout.total_numel()} : mine(u);
  };
  const auto bytes_of = [&](std::size_t u) {
    return static_cast<std::size_t>(range_of(u).size()) * dtype_bytes(units[u].sum_dtype());
  };
  const bool shared = whole_memory && !alone;
  all_or_none(ranks, [&] {
    for (std::size_t u = 0; u < units.size() && !shared; ++u) {
      if (units[u].trainable) {
        sums_[u].own = std::make_shared<HostMemory>(bytes_of(u));
        sums_[u].data = sums_[u].own->data();
        sums_[u].first = range_of(u).begin;
      }
    }
  });
  for (std::size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = units[u];
    if (!unit.trainable) {
      continue;
    }
    Sums& sums = sums_[u];
    if (shared) {
      sums.shared = ranks.allocate(bytes_of(u));
      sums.data = sums.shared.data();
    }
    sums.charges.push_back(ledger.charge(MemoryCategory::kGradients, bytes_of(u)));
    if (!whole_memory && options.sum_order == SumOrder::kLocalFirst) {
      const std::size_t whole =
          static_cast<std::size_t>(unit.layout.total_numel()) * dtype_bytes(unit.sum_dtype());
      sums.local = ranks.allocate(whole);
      sums.charges.push_back(ledger.charge(MemoryCategory::kBuckets, whole));
    }
  }
}

Range GradientSums::mine(std::size_t unit) const {
  return units_[unit].ranges[static_cast<std::size_t>(owners_.rank())];
}

std::byte* GradientSums::at(std::size_t unit, std::int64_t element) const {
  const Sums& sums = sums_[unit];
  return sums.data +
         static_cast<std::size_t>(element - sums.first) * dtype_bytes(units_[unit].sum_dtype());
}

std::byte* GradientSums::local(std::size_t unit, std::int64_t element) const {
  return sums_[unit].local.data() +
         static_cast<std::size_t>(element) * dtype_bytes(units_[unit].sum_dtype());
}

const std::byte* GradientSums::anyones(std::size_t unit, const Piece& piece) const {
  if (reads_peers_) {
    const auto& ranges = units_[unit].ranges;
    const auto owner = std::find_if(ranges.begin(), ranges.end(), [&](const Range& range) {
      return piece.offset >= range.begin && piece.offset < range.end;
    });
    return sums_[unit].shared.peer(static_cast<int>(owner - ranges.begin())) +
           static_cast<std::size_t>(piece.offset) * dtype_bytes(units_[unit].sum_dtype());
  }
  return at(unit, piece.offset);
}

std::shared_ptr<const void> GradientSums::owner(std::size_t unit) const {
  if (sums_[unit].own) {
    return sums_[unit].own;
  }
  return std::make_shared<const SharedBuffer>(sums_[unit].shared);
}

std::shared_ptr<const void> GradientSums::local_owner(std::size_t unit) const {
  return std::make_shared<const SharedBuffer>(sums_[unit].local);
}

void GradientSums::gather_whole() {
  if (whole_) {
    return;
  }
  whole_ = true;
  std::deque<Work> gathers;
  for (std::size_t u = 0; u < units_.size() && ranks_.size() > 1; ++u) {
    const Unit& unit = units_[u];
    if (!unit.trainable) {
      continue;
    }
    Counts counts;
    for (const Range& range : unit.ranges) {
      counts.push_back(range.size());
    }
    gathers.push_back(
        ranks_.all_gather(ConstSpan(at(u, mine(u).begin), mine(u).size(), unit.sum_dtype()),
                          Span(at(u, 0), unit.layout.total_numel(), unit.sum_dtype()),
                          std::move(counts)));
  }
  for (Work& work : gathers) {
    work.wait();
  }
}

void GradientSums::make_totals() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    Sums& sums = sums_[u];
    const std::size_t bytes =
        static_cast<std::size_t>(mine(u).size()) * dtype_bytes(units_[u].sum_dtype());
    if (units_[u].trainable && sums.totals.size_bytes() == 0 && bytes > 0) {
      sums.totals = HostMemory(bytes);
      sums.charges.push_back(ledger_.charge(MemoryCategory::kGradients, bytes));
    }
  }
}

void GradientSums::add_to_totals(const std::vector<char>& accumulated) {
  in_totals_.resize(accumulated.size(), 0);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = units_[u];
    if (!unit.trainable) {
      continue;
    }
    const std::size_t element = dtype_bytes(unit.sum_dtype());
    for (const Piece& piece : unit.layout.pieces(mine(u))) {
      const std::size_t parameter = unit.parameters[piece.parameter];
      if (accumulated[parameter]) {
        accumulate(sums_[u].totals.data() +
                       static_cast<std::size_t>(piece.offset - mine(u).begin) * element,
                   unit.sum_dtype(),
                   at(u, piece.offset),
                   unit.sum_dtype(),
                   piece.numel,
                   !in_totals_[parameter]);
      }
    }
  }
  // A parameter may have pieces in several places: it counts when all of them have been added.
  for (std::size_t p = 0; p < accumulated.size(); ++p) {
    in_totals_[p] |= accumulated[p];
  }
}

const std::vector<char>& GradientSums::take_totals() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (sums_[u].totals.size_bytes() > 0) {
      std::memcpy(at(u, mine(u).begin), sums_[u].totals.data(), sums_[u].totals.size_bytes());
    }
  }
  return in_totals_;
}

void GradientSums::reset() {
  std::fill(in_totals_.begin(), in_totals_.end(), 0);
  whole_ = false;
}

}  // namespace trireme::detail
