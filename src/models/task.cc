#include "trireme/models/task.h"

#include <torch/nn/functional/loss.h>

#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

template <class T>
Tensor view_of(const std::vector<T>& values, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<T*>(values.data()), sizes, at::TensorOptions().dtype(type));
}

template <class T>
std::vector<T> copied(const Tensor& tensor, at::ScalarType type) {
  const Tensor values = tensor.to(at::kCPU, type).contiguous();
  const T* begin = values.const_data_ptr<T>();
  return {begin, begin + values.numel()};
}

}  // namespace

Tensor predicted_classes(const Tensor& scores) {
  // What is not a number is the largest one to argmax.
  const Tensor best = scores.argmax(-1);
  const Tensor highest = scores.gather(-1, best.unsqueeze(-1)).squeeze(-1);
  return best.masked_fill(highest.isnan(), -1);
}

std::uint64_t TensorBatch::key(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  return seed != 0 ? mix(seed, i) : mix(0, at < ids.size() ? ids[at] : i);
}

TensorBatch as_tensors(const Batch& batch, const SampleShape& shape) {
  TensorBatch result;
  result.samples = batch.samples;
  result.ids = batch.ids;
  switch (shape.kind) {
    case SampleKind::kDense: {
      std::vector<std::int64_t> sizes = {batch.samples};
      sizes.insert(sizes.end(), shape.dense.begin(), shape.dense.end());
      result.dense = view_of(batch.dense, sizes, at::kFloat);
      break;
    }
    case SampleKind::kTokens:
      result.tokens = view_of(batch.tokens, {batch.samples, shape.length}, at::kLong);
      result.host_tokens = result.tokens;
      return result;
    case SampleKind::kSparse: {
      const auto pairs = static_cast<std::int64_t>(batch.indices.size());
      result.offsets = view_of(batch.offsets, {batch.samples + 1}, at::kLong);
      result.indices = view_of(batch.indices, {pairs}, at::kLong);
      result.values = view_of(batch.values, {pairs}, at::kFloat);
      break;
    }
  }
  if (shape.classes > 0) {
    result.labels = view_of(batch.labels, {batch.samples}, at::kLong);
  } else {
    result.targets = view_of(batch.targets, {batch.samples}, at::kFloat);
  }
  return result;
}

at::Device device_of(const torch::nn::Module& module) {
  const std::vector<Tensor> parameters = module.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

Tensor on_device(const Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) {
    return tensor;
  }
  // Through pinned memory, which LibTorch keeps until the copy is done.
  return tensor.device().is_cpu() ? tensor.pin_memory().to(device, /*non_blocking=*/true)
                                  : tensor.to(device);
}

TensorBatch on_device(TensorBatch batch, at::Device device) {
  for (Tensor* tensor : {&batch.dense,
                         &batch.tokens,
                         &batch.offsets,
                         &batch.indices,
                         &batch.values,
                         &batch.labels,
                         &batch.targets}) {
    *tensor = on_device(*tensor, device);
  }
  return batch;
}

Task::Task(const SampleShape& shape, const std::vector<double>& class_weights) : shape_(shape) {
  if (class_weights.empty()) {
    return;
  }
  TRIREME_CHECK(static_cast<std::int64_t>(class_weights.size()) == shape.classes,
                "loss_weights: expected one for each of the {} classes, found {}",
                {shape.classes, class_weights.size()});
  weights_ = torch::tensor(class_weights, torch::kDouble).to(torch::kFloat);
}

double Task::weight_of(std::int64_t label) const {
  return weights_.defined() ? weights_.const_data_ptr<float>()[label] : 1;
}

double Task::weight_of(const Batch& batch) const {
  double sum = 0;
  for (const std::int64_t label : batch.labels) {
    sum += weight_of(label);
  }
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    // The first token of a sample is not predicted.
    sum += i % static_cast<std::size_t>(shape_.length) > 0 ? weight_of(batch.tokens[i]) : 0;
  }
  return sum;
}

Tensor Task::loss(const Tensor& scores, const TensorBatch& batch, double weight) const {
  // Targets, squares and sums of many terms stay in float32 whatever the model computes in.
  const Tensor exact = scores.to(at::kFloat);
  if (shape_.classes == 0) {
    return at::mse_loss(exact.flatten(), batch.targets);
  }
  const Tensor weights = on_device(weights_, exact.device());
  const F::CrossEntropyFuncOptions options = F::CrossEntropyFuncOptions().weight(weights);
  const Tensor each = predicts_tokens() ? exact.flatten(0, 1) : exact;
  const Tensor targets = predicts_tokens() ? batch.tokens.slice(1, 1).flatten() : batch.labels;
  if (weighs() && weight > 0) {
    return F::cross_entropy(
               each, targets, F::CrossEntropyFuncOptions().weight(weights).reduction(torch::kSum)) /
           weight;
  }
  return F::cross_entropy(each, targets, options);
}

Task::Judged Task::judge(const Tensor& scores, const TensorBatch& batch) const {
  const at::NoGradGuard no_grad;
  Judged judged;
  const Tensor exact = scores.to(at::kFloat);
  if (shape_.classes == 0) {
    judged.outputs = copied<float>(exact.flatten(), at::kFloat);
    judged.wanted = copied<float>(batch.targets, at::kFloat);
    judged.losses = copied<float>((exact.flatten() - batch.targets).square(), at::kFloat);
    return judged;
  }
  const F::CrossEntropyFuncOptions each = F::CrossEntropyFuncOptions().reduction(torch::kNone);
  if (predicts_tokens()) {
    const Tensor targets = batch.tokens.slice(1, 1).contiguous();
    const Tensor losses = F::cross_entropy(exact.flatten(0, 1), targets.flatten(), each);
    judged.losses = copied<float>(losses.view({batch.samples, -1}).sum(1), at::kFloat);
    judged.correct = copied<std::int64_t>(predicted_classes(exact).eq(targets).sum(1), at::kLong);
    return judged;
  }
  judged.losses = copied<float>(F::cross_entropy(exact, batch.labels, each), at::kFloat);
  judged.predictions = copied<std::int64_t>(predicted_classes(exact), at::kLong);
  judged.targets = copied<std::int64_t>(batch.labels, at::kLong);
  return judged;
}

}  // namespace trireme
