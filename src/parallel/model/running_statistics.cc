#include "trireme/parallel/running_statistics.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <torch/nn/modules/batchnorm.h>

#include "parallel/model/broadcast.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

// The shared base of BatchNorm1d, 2d and 3d is a template; this is what is needed of any of them.
struct Found {
  std::shared_ptr<const torch::nn::Module> module;
  torch::nn::BatchNormOptions options;
  at::Tensor mean, variance, count;
};

template <class Impl>
bool look_at(const std::shared_ptr<torch::nn::Module>& module, std::vector<Found>& found) {
  auto* norm = module->as<Impl>();
  if (norm == nullptr) {
    return false;
  }
  if (norm->options.track_running_stats() && norm->options.momentum() &&
      norm->running_mean.defined() && norm->running_mean.scalar_type() == at::kFloat) {
    found.push_back(
        {module, norm->options, norm->running_mean, norm->running_var, norm->num_batches_tracked});
  }
  return true;
}

// running = (1 - momentum) * running, for each use, + what they have left.
void apply(float* running, const float* left, std::size_t numel, float keep, std::int64_t uses) {
  if (uses == 0) {
    return;
  }
  for (std::size_t i = 0; i < numel; ++i) {
    for (std::int64_t use = 0; use < uses; ++use) {
      running[i] *= keep;
    }
    running[i] += left[i];
  }
}

}  // namespace

RunningStatistics::RunningStatistics(torch::nn::Module& model, std::shared_ptr<Communicator> ranks)
    : ranks_(std::move(ranks)) {
  std::vector<Found> found;
  for (const auto& module : model.modules()) {
    look_at<torch::nn::BatchNorm1dImpl>(module, found) ||
        look_at<torch::nn::BatchNorm2dImpl>(module, found) ||
        look_at<torch::nn::BatchNorm3dImpl>(module, found);
  }
  std::vector<const at::TensorImpl*> covered;
  for (const Found& each : found) {
    for (const at::Tensor& buffer : {each.mean, each.variance, each.count}) {
      detail::broadcast_tensor(buffer, *ranks_);
    }
    norms_.push_back({each.module,
                      each.mean,
                      each.variance,
                      each.count,
                      each.mean.cpu().clone(),
                      each.variance.cpu().clone(),
                      *each.options.momentum(),
                      each.count.item<std::int64_t>()});
    numel_ += 2 * each.mean.numel() + 1;
    for (const at::Tensor& buffer : {each.mean, each.variance, each.count}) {
      covered.push_back(buffer.unsafeGetTensorImpl());
    }
  }
  for (const at::Tensor& buffer : model.buffers()) {
    covers_all_ &= !buffer.defined() ||
                   std::ranges::find(covered, buffer.unsafeGetTensorImpl()) != covered.end();
  }
}

void RunningStatistics::begin() {
  const at::NoGradGuard no_grad;
  for (Norm& norm : norms_) {
    if (norm.module->is_training()) {
      norm.mean.zero_();
      norm.variance.zero_();
    }
    norm.count.zero_();
  }
}

void RunningStatistics::end(std::int64_t micro_batch) {
  if (norms_.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const Norm& norm : norms_) {
    parts.push_back(norm.count.to(at::kFloat).reshape({1}));
    parts.push_back(norm.mean);
    parts.push_back(norm.variance);
  }
  const at::Tensor all = at::cat(parts).cpu();  // at once, wherever they are
  const float* begin = all.const_data_ptr<float>();
  std::vector<float> values(begin, begin + all.numel());
  for (float& value : values) {
    value += 0.0F;  // no -0.0: sums with other ranks' zeros stay exact
  }
  recorded_.emplace_back(micro_batch, std::move(values));
}

void RunningStatistics::put_back() {
  const at::NoGradGuard no_grad;
  for (Norm& norm : norms_) {
    norm.mean.copy_(norm.kept_mean);
    norm.variance.copy_(norm.kept_variance);
    norm.count.fill_(norm.counted);
  }
}

void RunningStatistics::finish_step(std::int64_t micro_batches) {
  if (norms_.empty()) {
    return;
  }
  const auto stride = static_cast<std::size_t>(numel_);
  std::vector<float> all(stride * static_cast<std::size_t>(micro_batches), 0.0F);
  for (const auto& [micro_batch, values] : recorded_) {
    TRIREME_ASSERT(micro_batch >= 0 && micro_batch < micro_batches, "micro-batch ", micro_batch);
    std::copy(values.begin(),
              values.end(),
              all.begin() + static_cast<std::ptrdiff_t>(stride) * micro_batch);
  }
  recorded_.clear();
  if (ranks_->size() > 1) {
    ranks_->all_reduce(all).wait();
  }
  std::size_t offset = 0;
  for (Norm& norm : norms_) {
    const auto keep = static_cast<float>(1 - norm.momentum);
    const auto numel = static_cast<std::size_t>(norm.mean.numel());
    auto* mean = norm.kept_mean.mutable_data_ptr<float>();
    auto* variance = norm.kept_variance.mutable_data_ptr<float>();
    for (std::size_t m = 0; m < static_cast<std::size_t>(micro_batches); ++m) {
      const float* record = all.data() + stride * m + offset;
      const auto uses = static_cast<std::int64_t>(record[0]);
      // A norm that was used several times has made its own values smaller as often.
      apply(mean, record + 1, numel, keep, uses);
      apply(variance, record + 1 + numel, numel, keep, uses);
      norm.counted += uses;
    }
    offset += 1 + 2 * numel;
  }
  put_back();
}

void RunningStatistics::forget_step() {
  recorded_.clear();
  put_back();
}

void RunningStatistics::buffers_changed() {
  const at::NoGradGuard no_grad;
  for (Norm& norm : norms_) {
    norm.kept_mean.copy_(norm.mean);
    norm.kept_variance.copy_(norm.variance);
    norm.counted = norm.count.item<std::int64_t>();
  }
}

}  // namespace trireme
