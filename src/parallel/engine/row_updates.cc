// What a sharded optimizer does with gradients that are rows.

#include <algorithm>
#include <cmath>

#include "parallel/engine/sharded_optimizer.h"
#include "parallel/memory/runs.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// Elements whose gradients are put together at a time where rows without any are updated, too, and
// that a thread takes at a time where they are not.
constexpr std::int64_t kElements = 1 << 13;

// As many zeros, of either type.
ConstSpan zeros(std::int64_t numel, Dtype dtype) {
  static const std::vector<double> all(static_cast<std::size_t>(kElements));
  return {all.data(), numel, dtype};
}

}  // namespace

void ShardedOptimizer::check_rows() const {
  for (std::size_t p = 0; p < context_.plan.parameters.size(); ++p) {
    TRIREME_CHECK(
        context_.options.sparse_update == SparseUpdate::kExact ||
            !context_.plan.parameters[p].sparse || rules_.rule(p).updates_rows(),
        "EngineOptions::sparse_update: the optimizer {} cannot update rows of parameter {} and "
        "leave the others as they are (SparseUpdate::kLazy): use sgd, adam, adamw, adagrad, "
        "rmsprop or lion there, or SparseUpdate::kExact",
        {rules_.rule(p).name(), context_.plan.parameters[p].name});
  }
}

// Note [rows that are left alone]
// Lazily, always. Otherwise where the rule leaves what has a gradient of zero as it is, which a
// factor that is not finite (Note [clipping what is not finite]) would make a NaN.
bool ShardedOptimizer::leaves_others(std::size_t unit, const GradientTransform& transform) const {
  const Unit& its = context_.plan.units[unit];
  if (!its.trainable || !its.sparse) {
    return false;
  }
  return context_.options.sparse_update == SparseUpdate::kLazy ||
         (rules_.rule(its.parameters[0]).leaves_untouched() &&
          std::isfinite(transform.unscale * transform.clip_factor));
}

void ShardedOptimizer::spread_rows(const Gradients& gradients) {
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    const Unit& unit = context_.plan.units[u];
    if (!unit.trainable || !unit.sparse || !gradients.used[unit.parameters[0]] ||
        rules_.rule(unit.parameters[0]).updates_rows()) {
      continue;
    }
    const Range updated = context_.plan.ownership.updated(u);
    const Dtype dtype = unit.sum_dtype();
    const std::size_t bytes = static_cast<std::size_t>(updated.size()) * dtype_bytes(dtype);
    spread_[u] = {device::Buffer(bytes), context_.ledger.charge(MemoryCategory::kBuckets, bytes)};
    gradients.sums.rows(u).copy(updated, spread_[u].memory.span(dtype, updated.size()));
  }
}

void ShardedOptimizer::update_rows(std::size_t unit, const TouchedRows& touched, const Step& step) {
  const std::size_t parameter = context_.plan.units[unit].parameters[0];
  const Range updated = context_.plan.ownership.updated(unit);
  const std::vector<Range> runs = runs_of_rows(touched.rows_in(updated), touched.width(), updated);
  // Neighbours in the list are a thread's, until they are enough.
  std::vector<std::size_t> first = {0};
  std::int64_t numel = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    numel += runs[i].size();
    if (numel >= kElements) {
      first.push_back(i + 1);
      numel = 0;
    }
  }
  if (first.back() != runs.size()) {
    first.push_back(runs.size());
  }
  pool_.run(first.size() - 1, [&](std::size_t part) {
    for (std::size_t i = first[part]; i < first[part + 1]; ++i) {
      const Piece piece{0, runs[i].begin, runs[i].size(), runs[i].begin};
      rules_.rule(parameter).update(
          memory_.slice(unit, piece, touched.sums_in(runs[i])), step.transform, step.learning_rate);
    }
  });
}

void ShardedOptimizer::update_block(const Block& block,
                                    const TouchedRows& touched,
                                    const Step& step) {
  const Dtype dtype = context_.plan.units[block.unit].sum_dtype();
  std::vector<std::byte> memory;
  for (std::int64_t done = 0; done < block.piece.numel; done += kElements) {
    const std::int64_t numel = std::min(kElements, block.piece.numel - done);
    const Piece piece{
        block.piece.parameter, block.piece.begin + done, numel, block.piece.offset + done};
    const Range range{piece.offset, piece.offset + numel};
    ConstSpan gradient = zeros(numel, dtype);
    if (!touched.rows_in(range).empty()) {
      memory.resize(static_cast<std::size_t>(kElements) * dtype_bytes(dtype));
      const Span here(memory.data(), numel, dtype);
      touched.copy(range, here);
      gradient = here;
    }
    rules_.rule(block.parameter)
        .update(memory_.slice(block.unit, piece, gradient), step.transform, step.learning_rate);
  }
}

}  // namespace trireme::detail
