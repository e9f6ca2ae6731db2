#include "parallel/engine/row_bounds.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/norm.h>

#include "parallel/memory/runs.h"
#include "parallel/model/operator_watch.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {

std::vector<std::int64_t> RowBounds::union_of(const std::vector<std::int64_t>& rows) {
  Communicator& ranks = context_.ranks;
  const std::vector<std::int64_t> count = {static_cast<std::int64_t>(rows.size())};
  Counts counts(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(count, counts).wait();
  std::vector<std::int64_t> all(
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  ranks.all_gather(rows, all, counts).wait();
  std::ranges::sort(all);
  const auto repeated = std::ranges::unique(all);
  all.erase(repeated.begin(), repeated.end());
  return all;
}

std::vector<RowBounds::Scaled> RowBounds::measure() {
  const Unwatched guard;
  const at::NoGradGuard no_grad;
  std::vector<Scaled> scaled;
  for (const auto& [p, rows] : seen_.rows()) {
    const Parameter& parameter = context_.plan.parameters[p];
    if (!parameter.trainable) {
      continue;  // nothing updates it: it is scaled where it is looked up
    }
    const std::size_t unit = context_.plan.places[p].unit;
    const std::int64_t first = context_.plan.range_of(p).begin;
    const std::int64_t width = parameter.sizes[1];
    const at::Tensor values = at::empty({width}, scalar_type_of(context_.plan.units[unit].dtype));
    for (const std::int64_t row : union_of(rows)) {
      const std::int64_t begin = first + row * width;
      parameters_.read(unit, {begin, begin + width}, run_of(values));
      // As embedding_renorm_ has it.
      const double norm = values.norm(parameter.bound->norm_type).item<double>();
      if (norm > parameter.bound->max_norm) {
        scaled.push_back({p, row, parameter.bound->max_norm / (norm + 1e-7)});
      }
    }
  }
  return scaled;
}

void RowBounds::apply(const std::vector<Scaled>& rows) {
  const at::NoGradGuard no_grad;
  std::set<std::size_t> units;
  for (const Scaled& each : rows) {
    const std::size_t unit = context_.plan.places[each.parameter].unit;
    const std::int64_t width = context_.plan.parameters[each.parameter].sizes[1];
    const std::int64_t begin = context_.plan.range_of(each.parameter).begin + each.row * width;
    const Range updated = context_.plan.ownership.updated(unit);
    const Range mine = intersection({begin, begin + width}, updated);
    if (mine.empty()) {
      continue;
    }
    const Span run =
        part_of(states_.weights(unit), {mine.begin - updated.begin, mine.end - updated.begin});
    at::from_blob(run.bytes(), {run.numel()}, scalar_type_of(run.dtype())).mul_(each.factor);
    units.insert(unit);
  }
  for (const std::size_t unit : units) {
    states_.round_masters(unit);
  }
}

}  // namespace trireme::detail
