#include "trireme/models/gpt.h"

#include <string>
#include <utility>

#include <ATen/ops/linear.h>
#include <torch/nn/functional/loss.h>

#include "models/makers.h"
#include "nn/word_scores.h"
#include "trireme/core/error.h"
#include "trireme/models/recompute.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/cross_entropy.h"
#include "trireme/nn/gelu.h"
#include "trireme/nn/kernels.h"
#include "trireme/nn/layer_norm.h"
#include "trireme/settings/model_kinds.h"

namespace trireme::models {

namespace nn = torch::nn;
using torch::Tensor;

GptOptions GptOptions::of_size(TextSize size) {
  const TextModelSize& named = text_model_size(size);
  const bool gpt2 = size == TextSize::kGpt2;
  return {.vocabulary = gpt2 ? 50257 : 256,
          .sequence = named.sequence,
          .width = named.width,
          .layers = named.layers,
          .heads = named.heads,
          .tied = gpt2};
}

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : heads_(options.heads), causal_(options.causal) {
  TRIREME_CHECK(heads_ > 0 && options.width % heads_ == 0,
                "a transformer's width must be a multiple of its heads, found {} and {}",
                {options.width, heads_});
  const std::int64_t width = options.width;
  norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
  qkv_ = register_module("qkv", nn::Linear(width, 3 * width));
  out_ = register_module("out", nn::Linear(width, width));
  norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
  up_ = register_module("up", nn::Linear(width, 4 * width));
  down_ = register_module("down", nn::Linear(4 * width, width));
  drop_ = register_module("drop", nn::Dropout(options.dropout));
}

namespace {

// The sum of the stream, and its norm.
std::pair<Tensor, Tensor> normed(const ResidualStream& in, const nn::LayerNorm& norm) {
  if (!in.branch.defined()) {
    return {in.x, trireme::nn::layer_norm(in.x, norm->weight, norm->bias)};
  }
  const auto [sum, output] =
      trireme::nn::add_layer_norm(in.x, in.branch, in.bias, norm->weight, norm->bias);
  return {sum, output};
}

Tensor sum_of(const ResidualStream& stream) {
  return stream.x + (stream.bias.defined() ? stream.branch + stream.bias : stream.branch);
}

}  // namespace

ResidualStream GptBlockImpl::forward(const ResidualStream& in) {
  const auto [x, seen] = normed(in, norm1_);
  const auto [middle, given] = normed(
      with_branch(
          x, out_, trireme::nn::self_attention(seen, qkv_->weight, qkv_->bias, heads_, causal_)),
      norm2_);
  return with_branch(middle, down_, trireme::nn::linear_gelu(given, up_->weight, up_->bias));
}

Tensor GptBlockImpl::forward(const Tensor& x) {
  return sum_of(forward(ResidualStream{x}));
}

// The bias goes along beside the product, where the norm that follows can add both in one pass.
ResidualStream GptBlockImpl::with_branch(const Tensor& x, nn::Linear& last, const Tensor& in) {
  const bool drops = drop_->is_training() && drop_->options.p() > 0;
  if (!drops && trireme::nn::has_kernels(in)) {
    return {x, at::linear(in, last->weight), last->bias};
  }
  return {x, drop_->forward(last->forward(in))};
}

ResidualStream run_blocks(std::vector<GptBlock>& blocks, const Tensor& x, bool recomputes) {
  ResidualStream stream{x};
  for (GptBlock& block : blocks) {
    if (recomputes) {
      const auto run = [layer = block.get()](const Tensor& in) { return layer->forward(in); };
      stream.x = recompute(block.ptr(), stream.x, run);
    } else {
      stream = block->forward(stream);
    }
  }
  return stream;
}

Tensor sum_of_blocks(std::vector<GptBlock>& blocks, const Tensor& x, bool recomputes) {
  const ResidualStream stream = run_blocks(blocks, x, recomputes);
  return stream.branch.defined() ? sum_of(stream) : stream.x;
}

GptImpl::GptImpl(const GptOptions& given) : options(given) {
  tokens_ = register_module("tokens", nn::Embedding(options.vocabulary, options.width));
  places_ = register_module("places", nn::Embedding(options.sequence, options.width));
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    blocks_.push_back(register_module("block" + std::to_string(layer), GptBlock(options)));
  }
  norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({options.width})));
  drop_ = register_module("drop", nn::Dropout(options.dropout));
  if (!options.tied) {
    head_ = register_module(
        "head", nn::Linear(nn::LinearOptions(options.width, options.vocabulary).bias(false)));
  }
  initialise(*this, options.initialisation, options.layers);
}

Tensor GptImpl::forward(const Tensor& tokens) {
  return trireme::nn::word_scores(states(tokens), head());
}

Tensor GptImpl::loss(const Tensor& text) {
  const Tensor x = states(text.slice(1, 0, text.size(1) - 1));
  const Tensor targets = text.slice(1, 1);
  if (trireme::nn::has_kernels(x)) {
    return trireme::nn::linear_cross_entropy(x, head(), targets);
  }
  const Tensor scores = trireme::nn::padded_word_scores(x, head());
  constexpr std::int64_t kIgnored = -100;  // LibTorch's own
  return nn::functional::cross_entropy(
      scores.flatten(0, 1),
      trireme::nn::targets_in(scores, head().size(0), targets.flatten(), kIgnored));
}

const Tensor& GptImpl::head() const {
  return options.tied ? tokens_->weight : head_->weight;
}

Tensor GptImpl::states(const Tensor& tokens) {
  TRIREME_CHECK(tokens.size(1) <= options.sequence,
                "this gpt sees {} tokens at a time, found {}",
                {options.sequence, tokens.size(1)});
  const Tensor x = drop_->forward(
      tokens_->forward(tokens) + places_->forward(torch::arange(tokens.size(1), tokens.options())));
  return normed(run_blocks(blocks_, x, options.recompute), norm_).second;
}

GptOptions text_options(const TrainSettings& settings, const SampleShape& shape) {
  GptOptions options = GptOptions::of_size(settings.size);
  options.vocabulary = shape.classes;
  options.sequence = shape.length - 1;
  options.layers = settings.layers > 0 ? settings.layers : options.layers;
  options.width = settings.width > 0 ? settings.width : options.width;
  options.heads = settings.heads > 0 ? settings.heads : options.heads;
  options.dropout = settings.dropout;
  options.recompute = settings.recompute;
  options.initialisation = settings.initialisation;
  return options;
}

Trainable make_gpt(const TrainSettings& settings, const SampleShape& shape) {
  const Gpt model(text_options(settings, shape));
  Trainable made{model.ptr(), [model = model.ptr()](const TensorBatch& batch) {
                   return model->forward(batch.tokens.slice(1, 0, batch.tokens.size(1) - 1));
                 }};
  made.loss = [model = model.ptr()](const TensorBatch& batch) { return model->loss(batch.tokens); };
  return made;
}

}  // namespace trireme::models
