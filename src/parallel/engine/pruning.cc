#include "parallel/engine/pruning.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "parallel/memory/runs.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme {
namespace detail {
namespace {

template <typename F>
void with_elements(const Span& run, const F& body) {
  const auto count = static_cast<std::size_t>(run.numel());
  if (run.dtype() == Dtype::kFloat64) {
    body(std::span(reinterpret_cast<double*>(run.bytes()), count));
  } else {
    body(std::span(reinterpret_cast<float*>(run.bytes()), count));
  }
}

template <typename T>
bool is_pruned_value(T x) {
  return x == 0 && std::signbit(x);
}

// Larger for larger magnitudes; what is pruned already comes first, so that it is chosen again.
template <typename T>
std::uint64_t key_of(T x) {
  const auto bits = std::bit_cast<std::uint32_t>(std::fabs(static_cast<float>(x)));
  return is_pruned_value(x) ? 0 : std::uint64_t{bits} + 1;
}

constexpr int kDigitBits = 8;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
constexpr int kKeyBits = 32;  // the largest key, of a NaN, has 31

}  // namespace

}  // namespace detail

double Pruning::fraction_at(std::int64_t step) const {
  if (step < begin) {
    return 0;
  }
  const double left =
      step >= end ? 0 : static_cast<double>(end - step) / static_cast<double>(end - begin);
  return fraction * (1 - left * left * left);
}

namespace detail {

bool is_pruned(const Parameter& parameter, const Pruning& options) {
  if (!parameter.trainable) {
    return false;
  }
  return options.which ? options.which(parameter.name, parameter.sizes)
                       : parameter.sizes.size() >= 2 && !parameter.sparse && !parameter.bound &&
                             !parameter.complex;
}

void check_pruning(const std::vector<Parameter>& parameters, const EngineOptions& options) {
  if (options.prune.fraction <= 0) {
    return;
  }
  bool any = false;
  for (const Parameter& parameter : parameters) {
    if (!is_pruned(parameter, options.prune)) {
      continue;
    }
    any = true;
    const char* const what = parameter.sparse    ? "has sparse gradients"
                             : parameter.bound   ? "has rows with a max_norm"
                             : parameter.complex ? "is complex"
                                                 : nullptr;
    TRIREME_CHECK(what == nullptr,
                  "EngineOptions::prune: parameter {} {}: leave it out (Pruning::which)",
                  {parameter.name, what == nullptr ? "" : what});
  }
  TRIREME_CHECK(any,
                "EngineOptions::prune: expected a parameter to prune, found none of {} ({})",
                {parameters.size(),
                 options.prune.which ? "Pruning::which chooses none"
                                     : "those that are trained, with two dimensions or more and "
                                       "without sparse gradients"});
}

PrunedElements::PrunedElements(const Span& weights)
    : pruned_(static_cast<std::size_t>(weights.numel())) {
  with_elements(weights, [&](auto elements) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      pruned_[i] = is_pruned_value(elements[i]) ? 1 : 0;
    }
  });
}

void PrunedElements::restore(const Span& run) const {
  if (is_half(run.dtype())) {
    constexpr std::uint16_t kNegativeZero = 0x8000;  // of both
    auto* const elements = reinterpret_cast<std::uint16_t*>(run.bytes());
    for (std::size_t i = 0; i < pruned_.size(); ++i) {
      elements[i] = pruned_[i] != 0 ? kNegativeZero : elements[i];
    }
    return;
  }
  with_elements(run, [&](auto elements) {
    using T = typename decltype(elements)::value_type;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      elements[i] = pruned_[i] != 0 ? -T{0} : elements[i];
    }
  });
}

Pruner::Pruner(const PartContext& context, OptimizerMemory& states)
    : context_(context), states_(states) {
  for (std::size_t p = 0; p < context.plan.parameters.size(); ++p) {
    if (is_pruned(context.plan.parameters[p], context.options.prune)) {
      parameters_.push_back(p);
    }
  }
}

bool Pruner::is_due(std::int64_t step) const {
  const Pruning& prune = context_.options.prune;
  if (step < prune.begin) {
    return false;
  }
  // A training that goes on after the last of its steps may have begun without pruning.
  return step >= prune.end ? step == prune.end || !begun_ : (step - prune.begin) % prune.every == 0;
}

std::vector<Span> Pruner::owned(std::size_t parameter, int owner) const {
  const std::size_t unit = context_.plan.places[parameter].unit;
  const Ownership& ownership = context_.plan.ownership;
  const Range all = context_.plan.range_of(parameter);
  const Range held = ownership.updated(unit);
  const Range range = intersection(intersection(ownership.ranges(unit)[index(owner)], held), all);
  if (range.empty()) {
    return {};
  }
  return {part_of(states_.weights(unit), {range.begin - held.begin, range.end - held.begin})};
}

void Pruner::add_up(std::vector<double>& counts) {
  context_.owners.all_reduce(counts).wait();
}

// The key of the k-th least weight of each parameter, digit by digit: how many weights have each
// next digit is summed over the owners, exactly, so everybody finds the same one.
struct Pruner::Select {
  std::size_t parameter = 0;
  std::uint64_t key = 0;    // its digits so far
  std::int64_t before = 0;  // weights with a lower one
  std::int64_t target = 0;
};

std::vector<Pruner::Cut> Pruner::measure(std::int64_t steps) {
  const std::int64_t step = steps + 1;
  if (!is_due(step)) {
    return {};
  }
  begun_ = true;
  const double fraction = context_.options.prune.fraction_at(step);
  std::vector<Select> selects;
  for (const std::size_t p : parameters_) {
    const auto numel = static_cast<double>(context_.plan.parameters[p].numel);
    const auto target = static_cast<std::int64_t>(std::llround(fraction * numel));
    if (target > 0) {
      selects.push_back({p, 0, 0, target});
    }
  }
  const int me = context_.owners.rank();
  for (int shift = kKeyBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    std::vector<double> counts(selects.size() * kDigits);
    for (std::size_t i = 0; i < selects.size(); ++i) {
      for (const Span& run : owned(selects[i].parameter, me)) {
        with_elements(run, [&](auto elements) {
          for (const auto x : elements) {
            const std::uint64_t key = key_of(x);
            if (key >> (shift + kDigitBits) == selects[i].key >> (shift + kDigitBits)) {
              ++counts[i * kDigits + ((key >> shift) & (kDigits - 1))];
            }
          }
        });
      }
    }
    add_up(counts);
    for (std::size_t i = 0; i < selects.size(); ++i) {
      Select& select = selects[i];
      std::uint64_t digit = 0;
      for (; digit + 1 < kDigits; ++digit) {
        const auto here = static_cast<std::int64_t>(counts[i * kDigits + digit]);
        if (select.before + here >= select.target) {
          break;
        }
        select.before += here;
      }
      select.key |= digit << shift;
    }
  }
  // Of those with the key itself, the first ones.
  const auto owners = index(context_.owners.size());
  std::vector<double> equal(selects.size() * owners);
  for (std::size_t i = 0; i < selects.size(); ++i) {
    for (const Span& run : owned(selects[i].parameter, me)) {
      with_elements(run, [&](auto elements) {
        equal[i * owners + index(me)] += static_cast<double>(
            std::ranges::count_if(elements, [&](auto x) { return key_of(x) == selects[i].key; }));
      });
    }
  }
  add_up(equal);
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < selects.size(); ++i) {
    Cut cut{selects[i].parameter, selects[i].key, std::vector<std::int64_t>(owners)};
    std::int64_t left = selects[i].target - selects[i].before;
    const auto& ranges = context_.plan.ownership.ranges(context_.plan.places[cut.parameter].unit);
    std::vector<std::size_t> order(owners);
    for (std::size_t owner = 0; owner < owners; ++owner) {
      order[owner] = owner;
    }
    std::ranges::stable_sort(order, {}, [&](std::size_t owner) { return ranges[owner].begin; });
    for (const std::size_t owner : order) {
      cut.ties[owner] = std::min(left, static_cast<std::int64_t>(equal[i * owners + owner]));
      left -= cut.ties[owner];
    }
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

void Pruner::apply(const std::vector<Cut>& cuts) {
  std::set<std::size_t> units;
  for (const Cut& cut : cuts) {
    for (int owner = 0; owner < context_.owners.size(); ++owner) {
      std::int64_t ties = cut.ties[index(owner)];
      for (const Span& run : owned(cut.parameter, owner)) {
        with_elements(run, [&](auto elements) {
          using T = typename decltype(elements)::value_type;
          for (T& x : elements) {
            const std::uint64_t key = key_of(x);
            if (key < cut.key || (key == cut.key && ties-- > 0)) {
              x = -T{0};
            }
          }
        });
      }
    }
    units.insert(context_.plan.places[cut.parameter].unit);
  }
  for (const std::size_t unit : units) {
    states_.round_masters(unit);
  }
}

double Pruner::fraction() {
  std::vector<double> counts(2);
  for (const std::size_t p : parameters_) {
    for (const Span& run : owned(p, context_.owners.rank())) {
      with_elements(run, [&](auto elements) {
        counts[0] += static_cast<double>(
            std::ranges::count_if(elements, [](auto x) { return is_pruned_value(x); }));
        counts[1] += static_cast<double>(elements.size());
      });
    }
  }
  add_up(counts);
  return counts[0] / counts[1];
}

}  // namespace detail
}  // namespace trireme
