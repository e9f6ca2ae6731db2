#include "parallel/gradient/sparse_path.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/empty.h>

#include "parallel/memory/runs.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

SparsePath::SparsePath(const PartContext& context, GradientSums& sums)
    : context_(context), sums_(sums), begun_(context.plan.units.size(), 0) {}

bool SparsePath::add(std::size_t parameter, const at::Tensor& gradient) {
  const at::Tensor rows = gradient.is_sparse() ? gradient : gradient.to_sparse(1);
  gradients_.emplace_back(parameter, rows.coalesce());
  return gradients_.back().second._values().isfinite().all().item<bool>();
}

// Note [sparse gradients and memory]
// Everything that needs memory of the tensors' allocator, which may be refused on one rank alone,
// comes before the first call that the ranks make together: a rank that fails can then still give
// up the step.
void SparsePath::end_round(bool given_up) {
  if (given_up) {
    gradients_.clear();
  }
  std::vector<Rows> all;
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    if (context_.plan.units[u].sparse) {
      all.push_back(rows_of(u));
    }
  }
  for (const Rows& rows : all) {
    if (!begun_[rows.unit]) {
      begun_[rows.unit] = 1;
      device::host().clear(sums_.mine(rows.unit));
    }
    add_up(rows);
  }
  gradients_.clear();
}

SparsePath::Rows SparsePath::rows_of(std::size_t u) const {
  const Unit& unit = context_.plan.units[u];
  const Parameter& parameter = context_.plan.parameters[unit.parameters[0]];
  // One gradient, or those of all micro-batches of this rank (SumOrder::kLocalFirst).
  at::Tensor gradient;
  for (const auto& [which, more] : gradients_) {
    if (which == unit.parameters[0]) {
      gradient = gradient.defined() ? (gradient + more).coalesce() : more;
    }
  }
  const std::int64_t width = parameter.sizes[0] == 0 ? 0 : parameter.numel / parameter.sizes[0];
  const at::ScalarType type = scalar_type_of(unit.dtype);
  if (!gradient.defined()) {
    return {u, width, at::empty({0}, at::kLong), at::empty({0, width}, type)};
  }
  return {u,
          width,
          gradient._indices()[0].contiguous(),
          gradient._values().reshape({-1, width}).to(type).contiguous()};
}

// Adds the rows of all ranks to the sums of this rank's range. Collective; takes no memory of the
// tensors' allocator.
void SparsePath::add_up(const Rows& own) {
  Communicator& ranks = context_.ranks;
  const std::int64_t width = own.width;
  const std::vector<std::int64_t> count = {own.indices.numel()};
  Counts rows(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(count, rows).wait();
  const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  Counts elements = rows;
  for (std::int64_t& each : elements) {
    each *= width;
  }
  const Dtype dtype = context_.plan.units[own.unit].dtype;
  const std::size_t bytes = static_cast<std::size_t>(total * width) * dtype_bytes(dtype);
  const auto all_rows =
      std::make_shared_for_overwrite<std::int64_t[]>(static_cast<std::size_t>(total));
  const auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  const Span all_values(memory.get(), total * width, dtype, memory);
  const MemoryLedger::Charge charge = context_.ledger.charge(
      MemoryCategory::kBuckets, bytes + static_cast<std::size_t>(total) * sizeof(std::int64_t));
  ranks.all_gather(own.indices, Span(all_rows.get(), total, Dtype::kInt64, all_rows), rows).wait();
  ranks.all_gather(own.values, all_values, elements).wait();

  const Range range = context_.plan.ownership.mine(own.unit);
  device::host().add_rows({.sums = sums_.at(own.unit, range),
                           .range = range,
                           .width = width,
                           .rows = {all_rows.get(), static_cast<std::size_t>(total)},
                           .values = all_values});
}

void SparsePath::end_step(StepOutcome) {
  std::fill(begun_.begin(), begun_.end(), 0);
}

}  // namespace trireme::detail
