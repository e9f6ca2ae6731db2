#include "parallel/sharded_optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "parallel/same_on_all_ranks.h"
#include "parallel/unit_storage.h"
#include "trireme/core/error.h"
#include "trireme/optim/moving_average.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {
namespace {

// Elements of one errand of a thread.
constexpr std::int64_t kErrand = 1 << 18;

// A user's rule may say anything.
void check_states(const Optimizer& rule) {
  const int count = rule.state_count();
  TRIREME_CHECK(count >= 0 && count <= ParameterSlice::kMostStates,
                "the optimizer ",
                rule.name(),
                " keeps ",
                count,
                " states for every element (Optimizer::state_count): expected 0 to ",
                ParameterSlice::kMostStates);
  const std::vector<std::string> names = rule.state_names();
  const std::set<std::string> different(names.begin(), names.end());
  TRIREME_CHECK(
      names.size() == static_cast<std::size_t>(count) && different.size() == names.size(),
      "the optimizer ",
      rule.name(),
      " has ",
      count,
      " states and ",
      different.size(),
      " different names for them (Optimizer::state_names): checkpoints need one for each");
}

template <class T>
bool any_nan(const std::byte* data, std::int64_t numel) {
  const auto* values = reinterpret_cast<const T*>(data);
  return std::any_of(values, values + numel, [](T value) { return std::isnan(value); });
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const Optimizer& optimizer,
                                   const ParameterMemoryContext& context,
                                   ParameterMemory& memory,
                                   bool divided)
    : optimizer_(optimizer.clone()),
      context_(context),
      memory_(memory),
      divided_(divided),
      threads_(context.options.threads > 0 ? context.options.threads : at::get_num_threads()),
      units_(context.units.size()),
      steps_(context.parameters.size(), 0) {
  check_states(*optimizer_);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = context.units[u];
    if (!unit.trainable) {
      continue;
    }
    const std::size_t bytes =
        static_cast<std::size_t>(range(u).size()) * dtype_bytes(unit.sum_dtype());
    const auto take = [&](MemoryCategory category) {
      units_[u].charges.push_back(context_.ledger.charge(category, bytes));
      return HostMemory(bytes);
    };
    for (int i = 0; i < optimizer_->state_count(); ++i) {
      units_[u].states.push_back(take(MemoryCategory::kOptimizer));
    }
    if (unit.has_masters()) {
      units_[u].masters = take(MemoryCategory::kOptimizer);
    }
    if (context.options.ema_decay > 0) {
      units_[u].averages = take(MemoryCategory::kAverages);
    }
  }
}

Range ShardedOptimizer::range(std::size_t unit) const {
  const Unit& u = context_.units[unit];
  return divided_ ? u.ranges[static_cast<std::size_t>(context_.ranks.rank())]
                  : Range{0, u.layout.total_numel()};
}

std::size_t ShardedOptimizer::at(std::size_t unit, std::int64_t element) const {
  return static_cast<std::size_t>(element - range(unit).begin) *
         dtype_bytes(context_.units[unit].sum_dtype());
}

std::byte* ShardedOptimizer::master(std::size_t unit, std::int64_t element) {
  std::byte* first =
      context_.units[unit].has_masters() ? units_[unit].masters.data() : memory_.owned(unit);
  return first + at(unit, element);
}

void ShardedOptimizer::take_masters(std::size_t u) {
  const Unit& unit = context_.units[u];
  if (!unit.trainable || !unit.has_masters()) {
    return;
  }
  const std::int64_t numel = unit.layout.total_numel();
  const Dtype dtype = unit.sum_dtype();
  const std::size_t element = dtype_bytes(dtype);
  Communicator& ranks = context_.ranks;
  const bool root = ranks.rank() == 0;
  HostMemory whole;
  all_or_none(ranks, [&] {
    whole = HostMemory(root || !divided_ ? static_cast<std::size_t>(numel) * element : 0);
    if (root) {
      Unit exact = unit;
      exact.dtype = dtype;  // the layout counts elements, so it holds for any dtype
      flatten(exact, context_.parameters, whole.data());
    }
  });
  if (!divided_) {
    ranks.broadcast({whole.data(), numel, dtype}, 0).wait();
    if (numel > 0) {
      std::memcpy(units_[u].masters.data(), whole.data(), whole.size_bytes());
    }
    return;
  }
  Counts counts;
  for (const Range& part : unit.ranges) {
    counts.push_back(part.size());
  }
  ranks
      .scatter({whole.data(), root ? numel : 0, dtype},
               {units_[u].masters.data(), range(u).size(), dtype},
               0,
               std::move(counts))
      .wait();
}

void ShardedOptimizer::take_averages(std::size_t u) {
  if (context_.units[u].trainable && context_.options.ema_decay > 0 && range(u).size() > 0) {
    std::memcpy(
        units_[u].averages.data(), master(u, range(u).begin), units_[u].averages.size_bytes());
  }
}

void ShardedOptimizer::parameters_changed(std::size_t u,
                                          std::size_t index,
                                          const at::Tensor& before,
                                          const at::Tensor& now) {
  const Unit& unit = context_.units[u];
  if (!unit.trainable || !unit.has_masters()) {
    return;
  }
  const std::int64_t offset = unit.layout.offset(index);
  const Range part = intersection({offset, offset + unit.layout.numel(index)}, range(u));
  if (part.empty()) {
    return;
  }
  const at::Tensor exact = now.to(at::kFloat);  // in the order of memory, as both are
  const auto* values = static_cast<const float*>(exact.const_data_ptr());
  const auto* old_bits = static_cast<const std::uint16_t*>(before.const_data_ptr());
  const auto* new_bits = static_cast<const std::uint16_t*>(now.const_data_ptr());
  auto* masters = reinterpret_cast<float*>(master(u, part.begin));
  for (std::int64_t i = part.begin - offset; i < part.end - offset; ++i) {
    if (old_bits[i] != new_bits[i]) {
      masters[i - (part.begin - offset)] = values[i];
    }
  }
}

std::vector<ShardedOptimizer::Memory> ShardedOptimizer::memories(std::size_t u) {
  const Unit& unit = context_.units[u];
  if (!unit.trainable) {
    return {{kWeightKind, unit.dtype, memory_.owned(u)}};
  }
  const Dtype exact = unit.sum_dtype();
  std::vector<Memory> all = {{kWeightKind, exact, master(u, range(u).begin)}};
  const std::vector<std::string> names = optimizer_->state_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    all.push_back({"optimizer." + names[i], exact, units_[u].states[i].data()});
  }
  if (context_.options.ema_decay > 0) {
    all.push_back({kAverageKind, exact, units_[u].averages.data()});
  }
  return all;
}

void ShardedOptimizer::round_masters(std::size_t u) {
  const Unit& unit = context_.units[u];
  if (!unit.trainable || !unit.has_masters() || range(u).empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const std::int64_t numel = range(u).size();
  at::from_blob(memory_.owned(u), {numel}, at::TensorOptions().dtype(scalar_type_of(unit.dtype)))
      .copy_(
          at::from_blob(units_[u].masters.data(), {numel}, at::TensorOptions().dtype(at::kFloat)));
}

std::vector<Piece> ShardedOptimizer::pieces(std::size_t u) const {
  const Unit& unit = context_.units[u];
  std::vector<Piece> all;
  for (const Range& part : unit.ranges) {
    const auto more = unit.layout.pieces(intersection(part, range(u)));
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

template <class Function>
void ShardedOptimizer::for_pieces(std::size_t unit,
                                  const std::vector<bool>& used,
                                  const Function& work) {
  std::vector<Piece> errands;
  for (const Piece& piece : pieces(unit)) {
    if (!used[context_.units[unit].parameters[piece.parameter]]) {
      continue;
    }
    for (std::int64_t done = 0; done < piece.numel; done += kErrand) {
      errands.push_back({piece.parameter,
                         piece.begin + done,
                         threads_ == 1 ? piece.numel : std::min(kErrand, piece.numel - done),
                         piece.offset + done});
      if (threads_ == 1) {
        break;
      }
    }
  }
  const auto helpers =
      std::min(static_cast<std::size_t>(threads_), errands.size()) - (errands.empty() ? 0 : 1);
  std::atomic<std::size_t> next{0};
  std::mutex failing;
  std::exception_ptr failure;  // the first, for the caller: no thread can throw it to anyone
  const auto run = [&] {
    try {
      for (std::size_t i = next++; i < errands.size(); i = next++) {
        work(errands[i]);
      }
    } catch (...) {
      const std::lock_guard lock(failing);
      failure = failure ? failure : std::current_exception();
      next = errands.size();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(helpers);
  for (std::size_t i = 0; i < helpers; ++i) {
    try {
      threads.emplace_back(run);
    } catch (const std::system_error&) {
      break;  // no more threads are to be had: those that are there do the work
    }
  }
  run();
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

ShardedOptimizer::Norm ShardedOptimizer::norm(const GradientSums& gradients,
                                              const std::vector<bool>& used,
                                              const Scaling& scaling,
                                              double bound,
                                              Communicator& compared) {
  // Every rank measures its own range, also where it holds more: the sums are exact.
  struct Part {
    const std::byte* data;
    Dtype dtype;
    std::int64_t numel;
  };
  std::vector<Part> parts;
  std::int64_t count = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit& unit = context_.units[u];
    if (!unit.trainable) {
      continue;
    }
    for (const std::size_t parameter : unit.parameters) {
      count += used[parameter] ? context_.parameters[parameter].numel : 0;
    }
    const Range own = unit.ranges[static_cast<std::size_t>(context_.ranks.rank())];
    for (const Piece& piece : unit.layout.pieces(own)) {
      if (used[unit.parameters[piece.parameter]]) {
        parts.push_back({gradients.anyones(u, piece), unit.sum_dtype(), piece.numel});
      }
    }
  }
  double largest = 0;
  bool nan = false;
  for (const Part& part : parts) {
    const double here = largest_magnitude(part.dtype, part.data, part.numel, scaling);
    largest = std::max(largest, here);
    nan = nan || (!std::isfinite(here) &&
                  (part.dtype == Dtype::kFloat64 ? any_nan<double>(part.data, part.numel)
                                                 : any_nan<float>(part.data, part.numel)));
  }
  std::vector<double> message = {largest, nan ? 1.0 : 0.0, bound, -bound};
  compared.all_reduce(message, ReduceOp::kMax).wait();
  Norm result{.norm = message[0], .least_bound = -message[3], .most_bound = message[2]};
  if (count == 0 || !std::isfinite(message[0])) {
    result.norm = message[1] > 0 ? std::numeric_limits<double>::quiet_NaN() : message[0];
    return result;
  }
  const SquareQuanta quanta = SquareQuanta::of(message[0], count);
  SquareSum sum;
  for (const Part& part : parts) {
    sum.add(sum_squares(part.dtype, part.data, part.numel, quanta, scaling));
  }
  std::vector<double> both = {sum.coarse, sum.fine};
  context_.ranks.all_reduce(both).wait();
  result.norm = SquareSum{both[0], both[1]}.norm();
  return result;
}

ParameterSlice ShardedOptimizer::slice(std::size_t u,
                                       const Piece& piece,
                                       const GradientSums& gradients) {
  const Unit& unit = context_.units[u];
  ParameterSlice slice;
  slice.dtype = unit.sum_dtype();
  slice.master = master(u, piece.offset);
  slice.gradient = gradients.anyones(u, piece);
  for (std::size_t i = 0; i < units_[u].states.size(); ++i) {
    slice.states[i] = units_[u].states[i].data() + at(u, piece.offset);
  }
  if (unit.has_masters()) {
    slice.low = memory_.owned(u) +
                static_cast<std::size_t>(piece.offset - range(u).begin) * dtype_bytes(unit.dtype);
    slice.low_dtype = unit.dtype;
  }
  slice.numel = piece.numel;
  slice.step = steps_[unit.parameters[piece.parameter]];
  return slice;
}

void ShardedOptimizer::update(const GradientSums& gradients,
                              const std::vector<bool>& used,
                              const GradientTransform& transform,
                              double learning_rate) {
  for (std::size_t p = 0; p < steps_.size(); ++p) {
    steps_[p] += used[p] ? 1 : 0;
  }
  const double decay = context_.options.ema_decay;
  const auto average = [&](std::size_t u, const Piece& piece) {
    if (decay > 0) {
      update_moving_average(context_.units[u].sum_dtype(),
                            units_[u].averages.data() + at(u, piece.offset),
                            master(u, piece.offset),
                            piece.numel,
                            decay);
    }
  };
  const std::vector<bool> everything(used.size(), true);
  const auto* lamb = dynamic_cast<const Lamb*>(optimizer_.get());
  if (lamb != nullptr) {
    update_lamb(*lamb, gradients, used, transform, learning_rate);
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!context_.units[u].trainable) {
      continue;
    }
    // An average follows a weight also in steps that leave the weight alone.
    for_pieces(u, decay > 0 ? everything : used, [&](const Piece& piece) {
      if (lamb == nullptr && used[context_.units[u].parameters[piece.parameter]]) {
        optimizer_->update(slice(u, piece, gradients), transform, learning_rate);
      }
      average(u, piece);
    });
    memory_.updated(u);
  }
  memory_.finish_update();
}

void ShardedOptimizer::update_lamb(const Lamb& lamb,
                                   const GradientSums& gradients,
                                   const std::vector<bool>& used,
                                   const GradientTransform& transform,
                                   double learning_rate) {
  // Norms are of whole parameters, so all ranks measure before any applies.
  std::vector<double> largest(steps_.size(), 0);
  std::vector<double> sums(4 * steps_.size(), 0);
  const auto for_each = [&](const auto& visit) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const Unit& unit = context_.units[u];
      if (!unit.trainable) {
        continue;
      }
      for (const Piece& piece : pieces(u)) {
        const std::size_t parameter = unit.parameters[piece.parameter];
        if (used[parameter]) {
          visit(u, piece, parameter);
        }
      }
    }
  };
  for_each([&](std::size_t u, const Piece& piece, std::size_t p) {
    largest[p] = std::max(
        largest[p],
        largest_magnitude(context_.units[u].sum_dtype(), master(u, piece.offset), piece.numel));
  });
  if (divided_) {
    context_.ranks.all_reduce(largest, ReduceOp::kMax).wait();
  }
  for_each([&](std::size_t u, const Piece& piece, std::size_t p) {
    const Lamb::Measure measure = lamb.measure(
        slice(u, piece, gradients), transform, largest[p], context_.parameters[p].numel);
    sums[4 * p] += measure.parameter.coarse;
    sums[4 * p + 1] += measure.parameter.fine;
    sums[4 * p + 2] += measure.direction.coarse;
    sums[4 * p + 3] += measure.direction.fine;
  });
  if (divided_) {
    context_.ranks.all_reduce(sums).wait();
  }
  for_each([&](std::size_t u, const Piece& piece, std::size_t p) {
    const Lamb::Measure whole{{sums[4 * p], sums[4 * p + 1]}, {sums[4 * p + 2], sums[4 * p + 3]}};
    lamb.apply(slice(u, piece, gradients), whole.trust_ratio(), learning_rate);
  });
}

at::Tensor ShardedOptimizer::gather(std::size_t parameter,
                                    const std::byte* own,
                                    std::int64_t first,
                                    Dtype dtype) {
  const Place& place = context_.places[parameter];
  const Unit& unit = context_.units[place.unit];
  const Parameter& p = context_.parameters[parameter];
  const Range whole{unit.layout.offset(place.index), unit.layout.offset(place.index) + p.numel};
  Counts counts;
  for (const Range& range : unit.ranges) {
    counts.push_back(intersection(range, whole).size());
  }
  const Range mine =
      intersection(unit.ranges[static_cast<std::size_t>(context_.ranks.rank())], whole);
  at::Tensor flat = at::empty({p.numel}, scalar_type_of(dtype));
  context_.ranks
      .all_gather(ConstSpan(mine.empty() ? nullptr
                                         : own + static_cast<std::size_t>(mine.begin - first) *
                                                     dtype_bytes(dtype),
                            mine.size(),
                            dtype),
                  flat,
                  std::move(counts))
      .wait();
  return flat.as_strided(p.sizes, p.strides);
}

at::Tensor ShardedOptimizer::average(std::size_t parameter) {
  const std::size_t u = context_.places[parameter].unit;
  return gather(
      parameter, units_[u].averages.data(), range(u).begin, context_.units[u].sum_dtype());
}

}  // namespace trireme::detail
