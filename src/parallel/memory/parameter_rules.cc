#include "parallel/memory/parameter_rules.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "device/stream.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// A user's rule may say anything.
void check_states(const Optimizer& rule, const std::vector<OptimizerState>& states) {
  TRIREME_CHECK(
      states.size() <= static_cast<std::size_t>(kMostOptimizerStates),
      "the optimizer {} keeps {} states for every element (Optimizer::states): expected 0 to {}",
      {rule.name(), states.size(), kMostOptimizerStates});
  std::set<std::string> different;
  for (const OptimizerState& state : states) {
    different.insert(state.name);
  }
  TRIREME_CHECK(different.size() == states.size(),
                "the optimizer {} has {} states and {} different names for them "
                "(Optimizer::states): checkpoints need one for each",
                {rule.name(), states.size(), different.size()});
}

}  // namespace

ParameterRules::ParameterRules(const Optimizer& optimizer,
                               const std::vector<Parameter>& parameters,
                               MemoryLedger& ledger)
    : optimizer_(optimizer.clone()), steps_(parameters.size(), 0) {
  std::vector<ParameterInfo> infos;
  infos.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    infos.push_back({parameter.name, parameter.sizes, parameter.strides});
  }
  rules_ = optimizer_->assign(infos);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Optimizer& its = *rules_[p];
    states_.push_back(parameters[p].trainable ? its.states(infos[p])
                                              : std::vector<OptimizerState>());
    check_states(its, states_.back());
    passes_.push_back(its.passes());
    most_passes_ = std::max(most_passes_, passes_.back().size());
    const Dtype dtype = parameters[p].dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
    whole_.push_back({std::move(infos[p]), dtype});
    for (std::size_t k = 0; k < states_[p].size(); ++k) {
      if (!states_[p][k].sizes.empty()) {
        const std::size_t bytes =
            static_cast<std::size_t>(states_[p][k].numel()) * dtype_bytes(dtype);
        charges_.push_back(ledger.charge(MemoryCategory::kOptimizer, bytes));
        memory_.emplace_back(bytes);
        whole_[p].states[k] = memory_.back().data();
      }
    }
  }
}

void ParameterRules::check_device(Device device) const {
  for (std::size_t p = 0; p < rules_.size(); ++p) {
    TRIREME_CHECK(
        rules_[p]->works_on(device),
        "the optimizer {} cannot update parameter {} on {} (Optimizer::works_on): use one of the "
        "library's there, or move the model to the CPU",
        {rules_[p]->name(), whole_[p].info.name, device_name(device)});
  }
}

void ParameterRules::check_one_pass() const {
  for (std::size_t p = 0; p < rules_.size(); ++p) {
    TRIREME_CHECK(
        passes_[p].empty() && !rules_[p]->takes_whole_parameters() &&
            std::ranges::all_of(states_[p],
                                [](const OptimizerState& state) { return state.sizes.empty(); }),
        "EngineOptions::offload: the optimizer {} looks at whole parameters ({}) before it updates "
        "them, and has a part of their states at hand: use sgd, adam, adamw, adagrad, rmsprop or "
        "lion, or leave it out",
        {rules_[p]->name(), whole_[p].info.name});
  }
}

double ParameterRules::rate(std::size_t parameter, double base) const {
  const double own = rules_[parameter]->learning_rate();
  const double common = optimizer_->learning_rate();
  return own == common ? base : own * (base / common);
}

std::string ParameterRules::assignment() const {
  std::string text;
  for (std::size_t p = 0; p < rules_.size(); ++p) {
    if (p > 0 && rules_[p] == rules_[p - 1]) {
      continue;
    }
    text += concat(
        "{}from {} on {}, {}",
        {text.empty() ? "" : "; ", whole_[p].info.name, rules_[p]->name(), rules_[p]->settings()});
  }
  return text;
}

ParameterRules::Layout ParameterRules::layout(const Unit& unit, Range range) const {
  constexpr std::int64_t kAlign = 16;  // elements, so that vectors begin with a cache line
  const auto divided = [&](std::size_t index, std::size_t k) {
    const std::vector<OptimizerState>& states = states_[unit.parameters[index]];
    return k < states.size() && states[k].sizes.empty();
  };
  Layout layout;
  layout.first.resize(unit.parameters.size());
  for (std::size_t k = 0; k < layout.numel.size(); ++k) {
    std::size_t with = 0;
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      with += divided(i, k) ? 1 : 0;
    }
    const bool all = with == unit.parameters.size();
    layout.numel[k] = all ? range.size() : 0;
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const std::int64_t offset = unit.layout.offset(i);
      const Range part = intersection({offset, offset + unit.layout.numel(i)}, range);
      std::int64_t& first = layout.first[i][k];
      first = all ? part.begin - range.begin : divided(i, k) ? layout.numel[k] : -1;
      if (!all && divided(i, k)) {
        layout.numel[k] += (part.size() + kAlign - 1) / kAlign * kAlign;
      }
    }
  }
  return layout;
}

std::int64_t ParameterRules::state_numel(const Unit& unit) const {
  std::int64_t numel = 0;
  for (const std::size_t p : unit.parameters) {
    for (const OptimizerState& state : states_[p]) {
      numel += state.sizes.empty() ? whole_[p].info.numel() : state.numel();
    }
  }
  return numel;
}

void ParameterRules::measure_part(const Part& part,
                                  std::size_t pass,
                                  const GradientTransform& transform,
                                  double* numbers) const {
  ParameterSlice slice = part.slice;
  slice.whole = &whole_[part.parameter];
  passes_[part.parameter][pass].measure(slice, transform, numbers);
}

void ParameterRules::measure(const std::vector<Part>& parts,
                             const GradientTransform& transform,
                             const Run& run,
                             Communicator* ranks) {
  using Combine = OptimizerPass::Combine;
  for (WholeParameter& whole : whole_) {
    whole.measured.clear();
  }
  for (std::size_t pass = 0; pass < most_passes_; ++pass) {
    // The numbers of all parameters, one after another; largest ones and sums apart.
    std::array<std::vector<double>, 2> numbers;
    std::vector<std::size_t> first(rules_.size());
    const auto kind = [&](std::size_t p) {
      return passes_[p][pass].combine == Combine::kLargest ? std::size_t{0} : std::size_t{1};
    };
    const auto has = [&](std::size_t p) { return used_[p] && pass < passes_[p].size(); };
    for (std::size_t p = 0; p < rules_.size(); ++p) {
      if (has(p)) {
        first[p] = numbers[kind(p)].size();
        numbers[kind(p)].resize(first[p] + passes_[p][pass].count(whole_[p].info));
      }
    }
    if (parts.empty() || parts[0].slice.device.is_host()) {
      std::mutex combining;  // in any order: the sums are exact
      run(parts.size(), [&](std::size_t i) {
        const std::size_t p = parts[i].parameter;
        if (!has(p)) {
          return;
        }
        std::vector<double> found(passes_[p][pass].count(whole_[p].info));
        measure_part(parts[i], pass, transform, found.data());
        const std::lock_guard lock(combining);
        double* into = numbers[kind(p)].data() + first[p];
        for (std::size_t k = 0; k < found.size(); ++k) {
          into[k] = kind(p) == 0 ? std::max(into[k], found[k]) : into[k] + found[k];
        }
      });
    } else {
      // All of the work is issued, and waited for once.
      const Device device = parts[0].slice.device;
      const std::size_t count = numbers[0].size() + numbers[1].size();
      if (seen_.size_bytes() < count * sizeof(double)) {
        seen_ = device::Buffer::visible_to(device, count * sizeof(double));
      }
      std::fill_n(reinterpret_cast<double*>(seen_.data()), count, 0.0);
      std::array<double*, 2> begin;
      begin[0] = reinterpret_cast<double*>(seen_.data());
      begin[1] = begin[0] + numbers[0].size();
      for (const Part& part : parts) {
        if (has(part.parameter)) {
          measure_part(part, pass, transform, begin[kind(part.parameter)] + first[part.parameter]);
        }
      }
      device::host().wait(device::driver(device).stream().record());
      for (const std::size_t of : {0, 1}) {
        std::copy_n(begin[of], numbers[of].size(), numbers[of].begin());
      }
    }
    if (ranks != nullptr && !numbers[0].empty()) {
      ranks->all_reduce(numbers[0], ReduceOp::kMax).wait();
    }
    if (ranks != nullptr && !numbers[1].empty()) {
      ranks->all_reduce(numbers[1]).wait();
    }
    for (std::size_t p = 0; p < rules_.size(); ++p) {
      if (has(p)) {
        const double* from = numbers[kind(p)].data() + first[p];
        whole_[p].measured.emplace_back(from, from + passes_[p][pass].count(whole_[p].info));
        if (passes_[p][pass].then) {
          passes_[p][pass].then(whole_[p]);
        }
      }
    }
  }
}

void ParameterRules::begin_step(const std::vector<bool>& used) {
  used_ = used;
  for (std::size_t p = 0; p < steps_.size(); ++p) {
    steps_[p] += used[p] ? 1 : 0;
    whole_[p].step = steps_[p];
  }
}

void ParameterRules::finish_step() {
  for (std::size_t p = 0; p < rules_.size(); ++p) {
    if (used_[p]) {
      rules_[p]->finish(whole_[p]);
    }
  }
}

}  // namespace trireme::detail
