#include "parallel/engine/sharded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "parallel/engine/pruning.h"
#include "parallel/memory/runs.h"
#include "trireme/comm/tell.h"
#include "trireme/core/pulse.h"
#include "trireme/optim/moving_average.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

// Elements that a thread takes at a time: about so many, and whole blocks of rounded parameters.
constexpr std::int64_t kThreadElements = 1 << 18;
// Of a window that is updated while the next one comes: so that all threads have some.
constexpr std::int64_t kWindowThreadElements = 1 << 16;
std::int64_t thread_block(const EngineOptions& options) {
  if (options.offload.any()) {
    return kWindowThreadElements;
  }
  const std::int64_t block = options.round_weights ? options.round_weights->format().block : 1;
  return std::max<std::int64_t>(1, kThreadElements / block) * block;
}

}  // namespace

// update_moving_average, and on a GPU the same three roundings by operators of LibTorch.
void ShardedOptimizer::follow(const Span& average, const Span& weights, double decay) {
  if (weights.device().is_host()) {
    update_moving_average(
        weights.dtype(), average.bytes(), weights.bytes(), weights.numel(), decay);
    return;
  }
  const auto tensor_of = [](const Span& run) {
    return at::from_blob(run.bytes(),
                         {run.numel()},
                         at::TensorOptions()
                             .dtype(scalar_type_of(run.dtype()))
                             .device(torch_device_of(run.device())));
  };
  const at::NoGradGuard no_grad;
  at::Tensor average_tensor = tensor_of(average);
  average_tensor.mul_(decay).add_(tensor_of(weights).mul(1 - decay));
}

ShardedOptimizer::ShardedOptimizer(const Optimizer& optimizer,
                                   const PartContext& context,
                                   ParameterMemory& parameters)
    : context_(context),
      rules_(optimizer, context.plan.parameters, context.ledger),
      memory_(context, rules_, parameters),
      // A GPU's stream belongs to one thread.
      pool_(!context.plan.device.is_host() && !context.options.offload.any() ? 1
            : context.options.threads > 0 ? context.options.threads
                                          : at::get_num_threads()),
      thread_block_(thread_block(context.options)),
      spread_(context.plan.units.size()) {
  for (const Parameter& parameter : context.plan.parameters) {
    const Pruning& prune = context.options.prune;
    pruned_.push_back(prune.fraction > 0 && is_pruned(parameter, prune));
  }
  check_rows();
  if (context.options.offload.any() && !context.plan.device.is_host()) {
    copies_ = std::make_unique<HostCopies>(context, memory_.windows());
  }
}

std::vector<ShardedOptimizer::Block> ShardedOptimizer::blocks(std::size_t unit,
                                                              Range within,
                                                              const std::vector<bool>& used) const {
  std::vector<Block> all;
  const Unit& u = context_.plan.units[unit];
  for (const Range& range : context_.plan.ownership.ranges(unit)) {
    if (!u.trainable) {
      break;
    }
    for (const Piece& piece : u.layout.pieces(intersection(range, within))) {
      const std::size_t parameter = context_.plan.parameter_of(unit, piece);
      const bool whole = pool_.threads() == 1 || rules_.rule(parameter).takes_whole_parameters();
      const std::int64_t most = whole ? piece.numel : thread_block_;
      for (std::int64_t done = 0; used[parameter] && done < piece.numel; done += most) {
        const std::int64_t numel = std::min(most, piece.numel - done);
        all.push_back(
            {unit, {piece.parameter, piece.begin + done, numel, piece.offset + done}, parameter});
      }
    }
  }
  return all;
}

ShardedOptimizer::Norm ShardedOptimizer::norm(const Gradients& gradients,
                                              const Scaling& scaling,
                                              double bound,
                                              Communicator& compared) {
  // Every rank measures its own range, also where it holds more: the sums are exact.
  std::vector<ConstSpan> parts;
  std::int64_t count = 0;
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    const Unit& unit = context_.plan.units[u];
    if (!unit.trainable) {
      continue;
    }
    for (const std::size_t parameter : unit.parameters) {
      count += gradients.used[parameter] ? context_.plan.parameters[parameter].numel : 0;
    }
    if (unit.sparse) {
      if (gradients.used[unit.parameters[0]]) {
        parts.push_back(gradients.sums.rows(u).sums_in(context_.plan.ownership.mine(u)));
      }
      continue;
    }
    for (const Piece& piece : unit.layout.pieces(context_.plan.ownership.mine(u))) {
      if (gradients.used[context_.plan.parameter_of(u, piece)]) {
        parts.push_back(gradients.sums.of_owner(u, piece));
      }
    }
  }
  if (norms_) {
    norms_->begin_again(scaling);
  } else {
    norms_.emplace(context_.plan.device, scaling);
  }
  const double largest = norms_->largest(parts);
  const bool nan = !std::isfinite(largest) && RunNorms::any_nan(parts);
  std::vector<double> message = {largest, nan ? 1.0 : 0.0, bound, -bound};
  compared.all_reduce(message, ReduceOp::kMax).wait();
  Norm result{.norm = message[0], .least_bound = -message[3], .most_bound = message[2]};
  if (count == 0 || !std::isfinite(message[0])) {
    result.norm = message[1] > 0 ? std::numeric_limits<double>::quiet_NaN() : message[0];
    return result;
  }
  const SquareSum sum = norms_->squares(parts, SquareQuanta::of(message[0], count));
  std::vector<double> both = {sum.coarse, sum.fine};
  context_.owners.all_reduce(both).wait();
  result.norm = SquareSum{both[0], both[1]}.norm();
  return result;
}

ParameterSlice ShardedOptimizer::slice(const Block& block, const GradientSums& sums) const {
  const Spread& spread = spread_[block.unit];
  if (!spread.there()) {
    return memory_.slice(block.unit, block.piece, sums.of_owner(block.unit, block.piece));
  }
  const Range updated = context_.plan.ownership.updated(block.unit);
  const std::int64_t begin = block.piece.offset - updated.begin;
  const Dtype dtype = context_.plan.units[block.unit].sum_dtype();
  return memory_.slice(
      block.unit,
      block.piece,
      part_of(spread.memory.span(dtype, updated.size()), {begin, begin + block.piece.numel}));
}

void ShardedOptimizer::update(Update& update,
                              const Gradients& gradients,
                              const GradientTransform& transform,
                              double learning_rate) {
  rules_.begin_step(gradients.used);
  if (context_.options.offload.any()) {
    update_windows(update, gradients, {transform, learning_rate});
    rules_.finish_step();
    return;
  }
  spread_rows(gradients);
  if (rules_.has_passes()) {
    measure(gradients, transform);
  }
  const double decay = context_.options.ema_decay;
  const std::vector<bool> everything(gradients.used.size(), true);
  std::vector<bool> by_rows(context_.plan.units.size());
  for (std::size_t u = 0; u < by_rows.size(); ++u) {
    const Unit& unit = context_.plan.units[u];
    const std::size_t parameter = unit.parameters[0];
    by_rows[u] = gradients.used[parameter] && leaves_others(u, transform);
    // Rows with a bound may be scaled without a gradient.
    if (unit.trainable && unit.sparse && !context_.plan.parameters[parameter].bound &&
        (by_rows[u] || !gradients.used[parameter])) {
      update.only_rows(u, gradients.sums.rows(u).rows_in(context_.plan.ownership.updated(u)));
    }
  }
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    const Unit& unit = context_.plan.units[u];
    if (!unit.trainable) {
      continue;
    }
    const Step step{transform, rules_.rate(unit.parameters[0], learning_rate)};
    if (by_rows[u]) {
      update_rows(u, gradients.sums.rows(u), step);
    }
    // An average follows a weight also in steps that leave the weight alone; and of rounded units,
    // all is sent.
    const bool rounded = unit.rounding != nullptr;
    const bool all_of_it = decay > 0 || rounded;
    const std::vector<Block> all = by_rows[u] && !all_of_it
                                       ? std::vector<Block>()
                                       : blocks(u, all_of_it ? everything : gradients.used);
    pool_.run(all.size(), [&](std::size_t i) {
      const Block& block = all[i];
      const Span weights = memory_.piece_of(memory_.weights(u), u, block.piece);
      std::optional<PrunedElements> pruned;
      if (pruned_[block.parameter]) {
        pruned.emplace(weights);
      }
      if (by_rows[u] || !gradients.used[block.parameter]) {
        // its update is done, or there is none
      } else if (unit.sparse && !spread_[u].there()) {
        update_block(block, gradients.sums.rows(u), step);
      } else {
        rules_.rule(block.parameter)
            .update(slice(block, gradients.sums),
                    transform,
                    rules_.rate(block.parameter, learning_rate));
      }
      if (pruned) {
        pruned->restore(weights);
        if (unit.narrow()) {  // which the update has written, too
          pruned->restore(memory_.parameters(u, block.piece));
        }
      }
      if (decay > 0) {
        const Span average = memory_.piece_of(memory_.averages(u), u, block.piece);
        follow(average, weights, decay);
        if (pruned) {
          pruned->restore(average);
        }
      }
      if (rounded) {
        memory_.round(u, block.piece);
      }
    });
    spread_[u] = {};
    update.written(u);
    mark(PulsePhase::kUpdate);
  }
  rules_.finish_step();
}

void ShardedOptimizer::measure(const Gradients& gradients, const GradientTransform& transform) {
  std::vector<ParameterRules::Part> parts;
  for (std::size_t u = 0; u < context_.plan.units.size(); ++u) {
    if (context_.plan.units[u].sparse && !spread_[u].there()) {
      continue;  // its rule has no passes
    }
    for (const Block& block : blocks(u, gradients.used)) {
      parts.push_back({block.parameter, slice(block, gradients.sums)});
    }
  }
  rules_.measure(
      parts,
      transform,
      [this](std::size_t count, const auto& work) { pool_.run(count, work); },
      context_.plan.ownership.divides_states() ? &context_.owners : nullptr);
}

at::Tensor ShardedOptimizer::gather(std::size_t parameter, const ConstSpan& own) {
  const Parameter& p = context_.plan.parameters[parameter];
  at::Tensor flat = at::empty({p.numel}, scalar_type_of(own.dtype()));
  const OnHost mine(own);
  context_.owners
      .all_gather(mine.run(),
                  flat,
                  context_.plan.ownership.counts(context_.plan.places[parameter].unit,
                                                 context_.plan.range_of(parameter)))
      .wait();
  return flat.as_strided(p.sizes, p.strides);
}

at::Tensor ShardedOptimizer::average(std::size_t parameter) {
  const std::size_t u = context_.plan.places[parameter].unit;
  const Range mine =
      intersection(context_.plan.ownership.mine(u), context_.plan.range_of(parameter));
  const Dtype dtype = context_.plan.units[u].sum_dtype();
  const device::Buffer values(static_cast<std::size_t>(mine.size()) * dtype_bytes(dtype));
  const Span here(values.data(), mine.size(), dtype);
  const auto read = [&] { memory_.read_averages(u, mine, here); };
  if (memory_.disk() != nullptr) {
    on_all_ranks(context_.owners, read);
  } else {
    read();
  }
  return gather(parameter, here);
}

}  // namespace trireme::detail
