// Updates where states are not beside the parameters (EngineOptions::offload): window by window, in
// the order of the units.

#include <cstring>
#include <exception>

#include "parallel/engine/sharded_optimizer.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {

OffloadUse ShardedOptimizer::offload() const {
  OffloadUse use;
  if (const DiskStates* disk = memory_.disk()) {
    use.fetched_bytes = disk->read_bytes();
    use.sent_bytes = disk->written_bytes();
    use.wait_seconds = disk->wait_seconds();
    use.past_cache = disk->file().past_cache();
    use.in_memory = disk->file().in_memory();
  }
  if (copies_) {
    use.fetched_bytes += copies_->fetched_bytes();
    use.sent_bytes += copies_->sent_bytes();
    use.wait_seconds += copies_->wait_seconds();
  }
  return use;
}

void ShardedOptimizer::update_windows(Update& update,
                                      const Gradients& gradients,
                                      const Step& step) {
  // An average follows a weight also in steps that leave the weight alone.
  const std::vector<bool> everything(gradients.used.size(), true);
  const std::vector<bool>& chosen = context_.options.ema_decay > 0 ? everything : gradients.used;
  const std::vector<StateWindow>& windows = memory_.windows();
  std::vector<std::size_t> order;
  for (std::size_t w = 0; w < windows.size(); ++w) {
    if (!blocks(windows[w].unit, windows[w].range, chosen).empty()) {
      order.push_back(w);
    }
  }
  const auto fetch = [&](std::size_t turn) {
    if (copies_ && turn < order.size()) {
      copies_->fetch(turn, fetches(windows[order[turn]], gradients.sums));
    }
  };
  // Of all units before this one, in the order that all ranks have.
  std::size_t told = 0;
  const auto tell_of_units_before = [&](std::size_t unit) {
    if (copies_ && told < unit) {
      copies_->publish();
    }
    for (; told < unit; ++told) {
      if (context_.plan.units[told].trainable) {
        update.written(told);
      }
    }
  };
  const auto update_all = [&] {
    memory_.begin_windows(order);
    if (copies_) {
      copies_->begin();
    }
    fetch(0);
    for (std::size_t turn = 0; turn < order.size(); ++turn) {
      const StateWindow& window = windows[order[turn]];
      tell_of_units_before(window.unit);
      fetch(turn + 1);
      memory_.next_window();
      if (copies_) {
        copies_->wait(turn);
      }
      update_window(turn, window, gradients, step);
      memory_.put_back_window();
      mark(PulsePhase::kUpdate);
    }
    tell_of_units_before(context_.plan.units.size());
    memory_.finish_windows();
  };
  if (!memory_.disk()) {
    update_all();
    return;
  }
  // A disk may fail on some ranks only. The others wait for what those have to tell them of their
  // units, whatever it is, and then hear of it.
  std::exception_ptr failure;
  try {
    update_all();
  } catch (const DataError&) {
    failure = std::current_exception();
    tell_of_units_before(context_.plan.units.size());
  }
  on_all_ranks(context_.ranks, [&] {
    if (failure) {
      std::rethrow_exception(failure);
    }
  });
}

// Gradients of a window, each run with the owner of its sums.
std::vector<HostCopies::Fetch> ShardedOptimizer::fetches(const StateWindow& window,
                                                         const GradientSums& sums) const {
  std::vector<HostCopies::Fetch> all;
  for (const Range& range : context_.plan.ownership.ranges(window.unit)) {
    const Range part = intersection(range, window.range);
    if (!part.empty()) {
      all.push_back({sums.of_owner(window.unit, {0, 0, part.size(), part.begin}),
                     part.begin - window.range.begin});
    }
  }
  return all;
}

void ShardedOptimizer::update_window(std::size_t turn,
                                     const StateWindow& window,
                                     const Gradients& gradients,
                                     const Step& step) {
  const std::size_t u = window.unit;
  const Unit& unit = context_.plan.units[u];
  const double decay = context_.options.ema_decay;
  const std::vector<bool> everything(gradients.used.size(), true);
  const std::vector<Block> all = blocks(u, window.range, decay > 0 ? everything : gradients.used);
  pool_.run(all.size(), [&](std::size_t i) {
    const Block& block = all[i];
    const Span weights = memory_.weights(u, block.piece);
    if (gradients.used[block.parameter]) {
      const std::int64_t at = block.piece.offset - window.range.begin;
      const std::int64_t numel = block.piece.numel;
      Span low;
      if (copies_) {
        low = copies_->parameters(turn, at, numel, unit.dtype);
      }
      const ConstSpan gradient = copies_ ? copies_->gradient(turn, at, numel, unit.sum_dtype())
                                         : gradients.sums.of_owner(u, block.piece);
      rules_.rule(block.parameter)
          .update(memory_.slice(u, block.piece, gradient, low.bytes()),
                  step.transform,
                  rules_.rate(block.parameter, step.learning_rate));
      if (copies_ && !unit.narrow()) {
        std::memcpy(low.bytes(), weights.bytes(), weights.size_bytes());
      }
    }
    if (decay > 0) {
      follow(memory_.averages(u, block.piece), weights, decay);
    }
  });
  if (copies_) {
    std::vector<HostCopies::Send> sends;
    for (const Piece& piece : unit.layout.pieces(window.range)) {
      if (gradients.used[context_.plan.parameter_of(u, piece)]) {
        sends.push_back({memory_.parameters(u, piece), piece.offset - window.range.begin});
      }
    }
    copies_->send(turn, sends);
  }
}

}  // namespace trireme::detail
