#include "optim/rule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "device/buffer.h"
#include "trireme/core/error.h"

namespace trireme {
namespace detail {
namespace {

std::int64_t product_of(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(
      sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<std::int64_t>());
}

}  // namespace

std::string exact_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

void check_bound(const char* rule, const char* name, Bound bound, double value) {
  if (bound == Bound::kBeta) {
    TRIREME_CHECK(
        value >= 0 && value < 1, rule, ": ", name, " must be from 0 to below 1, found ", value);
    return;
  }
  TRIREME_CHECK(std::isfinite(value), rule, ": ", name, " must be a number, found ", value);
  TRIREME_CHECK(bound != Bound::kNotNegative || value >= 0,
                "{}: {} cannot be negative, found {}",
                {rule, name, value});
  TRIREME_CHECK(bound != Bound::kNotPositive || value <= 0,
                "{}: {} cannot be above 0, found {}",
                {rule, name, value});
  TRIREME_CHECK(
      bound != Bound::kPositive || value > 0, rule, ": ", name, " must be above 0, found ", value);
}

void check_switch(const char* rule, const char* name, double value) {
  TRIREME_CHECK(value == 0 || value == 1,
                "{}: {} is a switch, true (1) or false (0), found {}",
                {rule, name, value});
}

void check_slice(const Optimizer& rule, const ParameterSlice& slice) {
  TRIREME_CHECK(slice.dtype == Dtype::kFloat32 || slice.dtype == Dtype::kFloat64,
                "{}: masters are float32 or float64, found {}",
                {rule.name(), dtype_name(slice.dtype)});
  TRIREME_CHECK(slice.low == nullptr ||
                    (slice.dtype == Dtype::kFloat32 &&
                     (slice.low_dtype == Dtype::kBFloat16 || slice.low_dtype == Dtype::kFloat16)),
                rule.name(),
                ": a low-precision copy is bfloat16 or float16, of a float32 master");
  TRIREME_CHECK(slice.step >= 1, rule.name(), ": steps count from 1, found ", slice.step);
  const std::vector<OptimizerState> states = rule.states(
      slice.whole != nullptr ? slice.whole->info : ParameterInfo{"", {slice.numel}, {}});
  for (std::size_t state = 0; state < states.size(); ++state) {
    const void* there = states[state].sizes.empty() ? slice.states[state]
                        : slice.whole != nullptr    ? slice.whole->states[state]
                                                    : nullptr;
    TRIREME_CHECK(slice.numel == 0 || there != nullptr,
                  "{}: needs {} states, found {}",
                  {rule.name(), states.size(), state});
  }
}

void refuse_setting(const Optimizer& rule, const std::string& name) {
  throw ConfigError(concat(
      "{} has no {}; its settings are {}",
      {rule.name(), name, listed(rule.values(), [](const auto& its) { return its.first; })}));
}

void update_whole(const Optimizer& rule,
                  const ParameterSlice& slice,
                  const GradientTransform& transform,
                  const std::function<void(const ParameterSlice&)>& update) {
  WholeParameter whole{{"", {slice.numel}, {1}}, slice.dtype, slice.step};
  ParameterSlice known = slice;
  known.whole = &whole;
  check_slice(rule, known);
  for (const OptimizerPass& pass : rule.passes()) {
    const std::size_t count = pass.count(whole.info);
    const auto numbers = device::Buffer::visible_to(slice.device, count * sizeof(double));
    const auto* first = reinterpret_cast<double*>(numbers.data());
    pass.measure(known, transform, reinterpret_cast<double*>(numbers.data()));
    device::host().wait(device::driver(slice.device).stream().record());
    whole.measured.emplace_back(first, first + count);
    if (pass.then) {
      pass.then(whole);
    }
  }
  update(known);
  rule.finish(whole);
}

}  // namespace detail

std::int64_t ParameterInfo::numel() const {
  return detail::product_of(sizes);
}

std::int64_t OptimizerState::numel() const {
  return detail::product_of(sizes);
}

ParameterSlice ParameterSlice::part(std::int64_t first, std::int64_t count) const {
  const std::int64_t offset = first * static_cast<std::int64_t>(dtype_bytes(dtype));
  ParameterSlice result = *this;
  result.numel = count;
  result.begin = begin + first;
  result.master = static_cast<std::byte*>(master) + offset;
  result.gradient = static_cast<const std::byte*>(gradient) + offset;
  for (void*& state : result.states) {
    state = state == nullptr ? nullptr : static_cast<std::byte*>(state) + offset;
  }
  result.low = low == nullptr ? nullptr
                              : static_cast<std::byte*>(low) +
                                    first * static_cast<std::int64_t>(dtype_bytes(low_dtype));
  return result;
}

std::vector<std::pair<std::string, double>> Optimizer::values() const {
  return {{"lr", learning_rate()}};
}

std::string Optimizer::settings() const {
  return detail::listed(
      values(), [](const auto& its) { return its.first + " " + detail::exact_text(its.second); });
}

void Optimizer::finish(WholeParameter& /*whole*/) const {}

std::vector<const Optimizer*> Optimizer::assign(
    const std::vector<ParameterInfo>& parameters) const {
  return std::vector<const Optimizer*>(parameters.size(), this);
}

std::unique_ptr<Optimizer> Optimizer::with(const std::map<std::string, double>& changes) const {
  TRIREME_CHECK(changes.empty(),
                "{}: its {} cannot be changed by name: override Optimizer::with, or give the group "
                "a rule of its own",
                {name(), changes.begin()->first});
  return clone();
}

}  // namespace trireme
