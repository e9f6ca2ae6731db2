#include "nn/word_scores.h"

#include <limits>

#include <ATen/autocast_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>

namespace trireme::nn {

using torch::Tensor;

namespace {

// 128 bytes of 16-bit numbers, as PyTorch's compiler pads.
constexpr std::int64_t kColumnsOfGpu = 64;

}  // namespace

Tensor word_scores_padded_to(std::int64_t multiple, const Tensor& x, const Tensor& weight) {
  const std::int64_t words = weight.size(0);
  const std::int64_t more = (multiple - words % multiple) % multiple;
  if (more == 0) {
    return at::linear(x, weight);
  }
  Tensor bias = torch::zeros({words + more}, x.options().requires_grad(false));
  bias.slice(0, words).fill_(-std::numeric_limits<double>::infinity());
  return at::linear(x, at::constant_pad_nd(weight, {0, 0, 0, more}), bias);
}

Tensor padded_word_scores(const Tensor& x, const Tensor& weight) {
  const bool half = x.element_size() == 2 || at::autocast::is_autocast_enabled(x.device().type());
  return word_scores_padded_to(x.is_cuda() && half ? kColumnsOfGpu : 1, x, weight);
}

Tensor targets_in(const Tensor& scores,
                  std::int64_t words,
                  const Tensor& targets,
                  std::int64_t ignored) {
  const std::int64_t more = scores.size(-1) - words;
  return more == 0
             ? targets
             : targets.where((targets < words).logical_or(targets == ignored), targets + more);
}

Tensor word_scores(const Tensor& x, const Tensor& weight) {
  const Tensor scores = padded_word_scores(x, weight);
  const bool padded = scores.size(-1) > weight.size(0);
  return padded ? scores.slice(-1, 0, weight.size(0)) : scores;  // a view has a backward, too
}

}  // namespace trireme::nn
