#include "parallel/gradient/sparse_path.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include "parallel/memory/runs.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

SparsePath::SparsePath(const PartContext& context, GradientSums& sums)
    : context_(context), sums_(sums) {
  for (std::size_t u = 0; u < context.plan.units.size(); ++u) {
    if (context.plan.units[u].trainable && context.plan.units[u].sparse) {
      units_.push_back(u);
    }
  }
}

bool SparsePath::add(std::size_t parameter, const at::Tensor& gradient) {
  const at::Tensor rows = gradient.is_sparse() ? gradient : gradient.to_sparse(1);
  const at::Tensor own = rows.coalesce();
  // Several micro-batches of 16 bits are added up in float32 here, as dense ones are.
  gradients_.emplace_back(parameter,
                          own.to(scalar_type_of(dtype_of(context_.plan.places[parameter].unit))));
  return own._values().isfinite().all().item<bool>();
}

// Note [sparse gradients and memory]
// Everything that needs memory of the tensors' allocator, which may be refused on one rank alone,
// comes before the first call that the ranks make together: a rank that fails can then still give
// up the step.
void SparsePath::end_round(bool given_up) {
  if (units_.empty()) {
    return;
  }
  if (given_up) {
    gradients_.clear();
  }
  std::vector<Rows> all;
  for (const std::size_t u : units_) {
    all.push_back(rows_of(u));
    deal(all.back());
  }
  // How many rows everyone gets of everyone: by rank, and for each by parameter.
  const auto size = static_cast<std::size_t>(context_.ranks.size());
  Counts to;
  for (std::size_t rank = 0; rank < size; ++rank) {
    for (const Rows& rows : all) {
      to.push_back(rows.to[rank]);
    }
  }
  Counts from(to.size());
  context_.ranks.all_to_all(to, from).wait();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      all[i].from.push_back(from[rank * all.size() + i]);
    }
    add_up(all[i]);
  }
  gradients_.clear();
}

Dtype SparsePath::dtype_of(std::size_t u) const {
  const Unit& unit = context_.plan.units[u];
  return context_.one_communication() ? unit.sum_dtype() : unit.dtype;
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
  const std::int64_t width = parameter.width();
  const at::ScalarType type = scalar_type_of(dtype_of(u));
  if (!gradient.defined()) {
    return {u, width, at::empty({0}, at::kLong), at::empty({0, width}, type)};
  }
  return {u,
          width,
          gradient._indices()[0].contiguous(),
          gradient._values().reshape({-1, width}).to(type).contiguous()};
}

// To which owners they go, which ascend as the rows do. A row in which a range ends and the next
// begins goes to both: it is then there twice.
void SparsePath::deal(Rows& rows) const {
  const std::vector<Range>& ranges = context_.plan.ownership.ranges(rows.unit);
  const std::int64_t count = rows.indices.numel();
  const std::int64_t* const first = rows.indices.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> sent;  // places in `rows`
  for (const Range& range : ranges) {
    const bool none = rows.width == 0 || range.empty();
    const std::int64_t* const begin =
        none ? first : std::lower_bound(first, first + count, range.begin / rows.width);
    const std::int64_t* const end =
        none ? first
             : std::lower_bound(begin, first + count, (range.end + rows.width - 1) / rows.width);
    rows.to.push_back(end - begin);
    for (const std::int64_t* at = begin; at < end; ++at) {
      sent.push_back(at - first);
    }
  }
  if (static_cast<std::int64_t>(sent.size()) != count) {
    const at::Tensor places = at::empty({static_cast<std::int64_t>(sent.size())}, at::kLong);
    std::ranges::copy(sent, places.mutable_data_ptr<std::int64_t>());
    rows.indices = rows.indices.index_select(0, places);
    rows.values = rows.values.index_select(0, places);
  }
}

// Adds the rows of all ranks to the sums of this rank's. Collective; takes no memory of the
// tensors' allocator.
void SparsePath::add_up(const Rows& own) {
  Communicator& ranks = context_.ranks;
  const std::int64_t total = std::accumulate(own.from.begin(), own.from.end(), std::int64_t{0});
  Counts elements = own.to;
  for (std::int64_t& each : elements) {
    each *= own.width;
  }
  const Dtype dtype = dtype_of(own.unit);
  const std::size_t bytes = static_cast<std::size_t>(total * own.width) * dtype_bytes(dtype);
  const auto all_rows =
      std::make_shared_for_overwrite<std::int64_t[]>(static_cast<std::size_t>(total));
  const auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  const Span all_values(memory.get(), total * own.width, dtype, memory);
  const MemoryLedger::Charge charge = context_.ledger.charge(
      MemoryCategory::kBuckets, bytes + static_cast<std::size_t>(total) * sizeof(std::int64_t));
  ranks.all_to_all(own.indices, Span(all_rows.get(), total, Dtype::kInt64, all_rows), own.to)
      .wait();
  ranks.all_to_all(own.values, all_values, elements).wait();
  count(own);
  sums_.rows(own.unit).add({all_rows.get(), static_cast<std::size_t>(total)}, all_values);
}

// What has gone to other ranks; dense gradients of a round send all that is not this rank's.
void SparsePath::count(const Rows& own) const {
  if (context_.sparse_use == nullptr) {
    return;
  }
  const Unit& unit = context_.plan.units[own.unit];
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype_of(own.unit)));
  const std::int64_t others =
      own.indices.numel() - own.to[static_cast<std::size_t>(context_.ranks.rank())];
  context_.sparse_use->gradient_bytes +=
      others * (own.width * element + static_cast<std::int64_t>(sizeof(std::int64_t)));
  context_.sparse_use->dense_bytes +=
      (unit.layout.total_numel() - context_.plan.ownership.mine(own.unit).size()) * element;
}

void SparsePath::finish() {
  for (const std::size_t u : units_) {
    sums_.rows(u).sort();
  }
}

void SparsePath::end_step(StepOutcome) {
  gradients_.clear();
  for (const std::size_t u : units_) {
    sums_.rows(u).clear();
  }
}

}  // namespace trireme::detail
