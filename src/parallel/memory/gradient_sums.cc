#include "parallel/memory/gradient_sums.h"

#include <deque>

#include "device/buffer.h"
#include "parallel/memory/runs.h"
#include "trireme/comm/tell.h"
#include "trireme/parallel/engine.h"

namespace trireme::detail {
namespace {

Span shared_run(const SharedBuffer& shared, std::int64_t numel, Dtype dtype) {
  return {
      shared.data(), numel, dtype, std::make_shared<const SharedBuffer>(shared), shared.device()};
}

}  // namespace

GradientSums::GradientSums(const PartContext& context)
    : context_(context), units_(context.plan.units.size()) {
  const ModelPlan& plan = context.plan;
  const bool whole = !plan.ownership.divides_sums();
  const bool shared = whole && context.ranks.size() > 1;
  const auto bytes_of = [&](std::int64_t numel, const Unit& unit) {
    return static_cast<std::size_t>(numel) * dtype_bytes(unit.sum_dtype());
  };
  // Memory of this rank alone comes first: where it is not there on one, all hear of it before they
  // make the shared memory together.
  on_all_ranks(context.ranks, [&] {
    for (std::size_t u = 0; u < plan.units.size() && !shared; ++u) {
      const Range range = plan.ownership.summed(u);
      if (plan.units[u].has_dense_sums()) {
        const auto own =
            std::make_shared<device::Buffer>(bytes_of(range.size(), plan.units[u]), plan.device);
        units_[u].run = {own->data(), range.size(), plan.units[u].sum_dtype(), own, plan.device};
        units_[u].first = range.begin;
      }
    }
  });
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Unit& unit = plan.units[u];
    Sums& sums = units_[u];
    if (unit.trainable && unit.sparse) {
      sums.rows = TouchedRows(
          plan.parameters[unit.parameters[0]].width(), unit.sum_dtype(), context.ledger);
    }
    if (!unit.has_dense_sums()) {
      continue;
    }
    const std::int64_t numel = unit.layout.total_numel();
    if (shared) {
      sums.shared = context.ranks.allocate(bytes_of(numel, unit), plan.device);
      sums.run = shared_run(sums.shared, numel, unit.sum_dtype());
    }
    sums.charges.push_back(
        context.ledger.charge(MemoryCategory::kGradients, sums.run.size_bytes()));
    if (!whole && context.one_communication()) {
      sums.local = shared_run(
          context.ranks.allocate(bytes_of(numel, unit), plan.device), numel, unit.sum_dtype());
      sums.charges.push_back(
          context.ledger.charge(MemoryCategory::kBuckets, sums.local.size_bytes()));
    }
  }
}

Span GradientSums::at(std::size_t unit, Range range) const {
  const Sums& sums = units_[unit];
  return part_of(sums.run, {range.begin - sums.first, range.end - sums.first});
}

Span GradientSums::local(std::size_t unit, Range range) const {
  return part_of(units_[unit].local, range);
}

ConstSpan GradientSums::of_owner(std::size_t unit, const Piece& piece) const {
  const Range range{piece.offset, piece.offset + piece.numel};
  const Ownership& ownership = context_.plan.ownership;
  if (ownership.reach() != SumsReach::kPeers) {
    return at(unit, range);
  }
  const Sums& sums = units_[unit];
  const std::byte* theirs = sums.shared.peer(ownership.owner_of(unit, piece.offset));
  return part_of(ConstSpan(theirs, sums.run.numel(), sums.run.dtype(), {}, sums.run.device()),
                 range);
}

// Note [rows for everyone]
// Where everyone updates everything, everyone takes the sums of all rows, also on one machine: they
// are few, and how many they are in a step, nobody else can know.
void GradientSums::gather_rows() {
  for (std::size_t u = 0; u < units_.size() && context_.ranks.size() > 1; ++u) {
    const Unit& unit = context_.plan.units[u];
    if (!unit.trainable || !unit.sparse) {
      continue;
    }
    TouchedRows& rows = units_[u].rows;
    const Range mine = context_.plan.ownership.mine(u);
    if (context_.sparse_use != nullptr) {
      const std::size_t own =
          rows.sums_in(mine).size_bytes() + rows.rows().size() * sizeof(std::int64_t);
      const auto others = static_cast<std::size_t>(context_.ranks.size() - 1);
      context_.sparse_use->gradient_bytes += static_cast<std::int64_t>(own * others);
      context_.sparse_use->dense_bytes += static_cast<std::int64_t>(
          static_cast<std::size_t>(mine.size()) * dtype_bytes(unit.sum_dtype()) * others);
    }
    rows.gather(context_.plan.ownership.ranges(u), context_.ranks);
  }
}

void GradientSums::publish() {
  if (context_.plan.ownership.reach() != SumsReach::kOwners) {
    gather_rows();
  }
  switch (context_.plan.ownership.reach()) {
    case SumsReach::kOwners:
      break;
    case SumsReach::kPeers:
      finish_work(context_.plan.device);
      context_.ranks.barrier().wait();  // the others' sums are read next
      break;
    case SumsReach::kEverywhere:
      gather_whole();
      break;
  }
}

void GradientSums::gather_whole() {
  if (whole_) {
    return;
  }
  whole_ = true;
  std::deque<Work> gathers;
  for (std::size_t u = 0; u < units_.size() && context_.ranks.size() > 1; ++u) {
    if (context_.plan.units[u].has_dense_sums() && !units_[u].whole) {
      gathers.push_back(
          context_.ranks.all_gather(mine(u), units_[u].run, context_.plan.ownership.counts(u)));
    }
  }
  for (Work& work : gathers) {
    work.wait();
  }
}

void GradientSums::set(std::size_t unit, Range range, const ConstSpan& values) {
  const Ownership& ownership = context_.plan.ownership;
  const Range here = ownership.divides_sums() ? intersection(ownership.mine(unit), range) : range;
  if (here.size() > 0) {
    const ConstSpan from = part_of(values, {here.begin - range.begin, here.end - range.begin});
    stream_for(at(unit, here), from).copy(at(unit, here), from);
    finish_work(context_.plan.device);  // `values` may go
  }
  if (ownership.reach() == SumsReach::kPeers) {
    context_.ranks.barrier().wait();
  }
}

void GradientSums::release() {
  whole_ = false;
  for (Sums& sums : units_) {
    sums.whole = false;
  }
  if (context_.plan.ownership.reach() == SumsReach::kPeers) {
    finish_work(context_.plan.device);  // the update reads them
    // Nobody waits here: forward comes first, and writes no sums.
    released_ = context_.ranks.barrier();
  }
}

}  // namespace trireme::detail
