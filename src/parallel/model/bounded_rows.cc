#include "parallel/model/bounded_rows.h"

#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding_renorm.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// The bounded weights of all engines of this process.
struct BoundedWeight {
  BoundedRows* rows;
  std::size_t parameter;
};
std::mutex weights_mutex;
std::unordered_map<const at::TensorImpl*, BoundedWeight> bounded_weights;

// An embedding_renorm_ of this thread that was left out.
struct LeftOut {
  at::Tensor weight{}, indices{};
  std::string name{};
};
thread_local LeftOut left_out;

[[noreturn]] void refuse_use(const std::string& what) {
  const std::string name = std::exchange(left_out, {}).name;
  throw ConfigError(
      concat("embedding_renorm_ of parameter {} was followed by {}: an engine scales the rows of a "
             "weight with max_norm where torch::nn::Embedding looks them up; to scale others, call "
             "it inside of engine.gathered({\"{}\"}), after the step",
             {name, what, name}));
}

}  // namespace

BoundedRows::BoundedRows(const std::vector<Parameter>& parameters) : parameters_(parameters) {
  const std::lock_guard lock(weights_mutex);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].bound) {
      rows_[i];
      bounded_weights[parameters[i].tensor.unsafeGetTensorImpl()] = {this, i};
    }
  }
}

BoundedRows::~BoundedRows() {
  const std::lock_guard lock(weights_mutex);
  // One whose model was given back may have become another engine's.
  std::erase_if(bounded_weights, [this](const auto& each) { return each.second.rows == this; });
}

void BoundedRows::forget() {
  const std::lock_guard lock(mutex_);
  for (auto& [parameter, rows] : rows_) {
    rows.clear();
  }
}

bool leaves_out(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  if (schema.name() != "aten::embedding_renorm_") {
    return false;
  }
  // (self, indices, max_norm, norm_type)
  const auto arguments = stack.end() - 4;
  const at::Tensor weight = arguments[0].toTensor();
  const RowBound bound{arguments[2].toDouble(), arguments[3].toDouble()};
  const std::lock_guard lock(weights_mutex);
  const auto found = bounded_weights.find(weight.unsafeGetTensorImpl());
  if (found == bounded_weights.end()) {
    return false;
  }
  const Parameter& parameter = found->second.rows->parameters_[found->second.parameter];
  if (parameter.bound != bound) {
    return false;
  }
  left_out = {weight, arguments[1].toTensor(), parameter.name};
  stack.erase(arguments + 1, stack.end());
  return true;
}

Lookup::Lookup(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  if (!left_out.weight.defined()) {
    return;
  }
  const std::size_t count = schema.arguments().size();
  const auto arguments = stack.end() - static_cast<std::ptrdiff_t>(count);
  if (schema.name() != "aten::embedding" || !arguments[0].toTensor().is_same(left_out.weight) ||
      !arguments[1].toTensor().is_same(left_out.indices)) {
    for (std::size_t i = 0; i < count; ++i) {
      if (arguments[static_cast<std::ptrdiff_t>(i)].isTensor() &&
          arguments[static_cast<std::ptrdiff_t>(i)].toTensor().is_same(left_out.weight)) {
        refuse_use(schema.name());
      }
    }
    return;
  }
  const std::lock_guard lock(weights_mutex);
  weight_ = std::exchange(left_out.weight, {});
  indices_ = std::exchange(left_out.indices, {});
  const auto found = bounded_weights.find(weight_.unsafeGetTensorImpl());
  if (found != bounded_weights.end()) {  // its engine is still there
    rows_ = found->second.rows;
    parameter_ = found->second.parameter;
  }
}

void Lookup::finish(torch::jit::Stack& stack) const {
  if (rows_ == nullptr) {
    return;
  }
  // A forward that no backward follows, an evaluation, leaves the weight as it is.
  const bool trains = at::GradMode::is_enabled() && weight_.requires_grad();
  const at::NoGradGuard no_grad;  // as in LibTorch: the gradient is that of the scaled row
  const auto [rows, place] =
      at::_unique(indices_.reshape(-1).to(at::kLong), /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor values = weight_.detach().index_select(0, rows);
  const RowBound& bound = *rows_->parameters_[parameter_].bound;
  at::embedding_renorm_(values, at::arange(rows.numel()), bound.max_norm, bound.norm_type);
  at::Tensor output = stack.back().toTensor();
  output.copy_(values.index_select(0, place).view(output.sizes()));
  if (trains) {
    const std::lock_guard lock(rows_->mutex_);
    std::vector<std::int64_t>& all = rows_->rows_.at(parameter_);
    const auto* first = rows.const_data_ptr<std::int64_t>();
    all.insert(all.end(), first, first + rows.numel());
  }
}

void check_bounds_used() {
  if (left_out.weight.defined()) {
    refuse_use("no lookup");
  }
}

}  // namespace trireme::detail
