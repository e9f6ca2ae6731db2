#include "trireme/models/gpt.h"

#include <string>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/functional/loss.h>

#include "models/makers.h"
#include "models/word_scores.h"
#include "trireme/core/error.h"
#include "trireme/models/recompute.h"
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

Tensor GptBlockImpl::forward(Tensor x) {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t width = x.size(2);
  // Backward stacks the three gradients of unbind; those of three selections it would add up.
  const std::vector<Tensor> parts = qkv_->forward(norm1_->forward(x))
                                        .view({batch, length, 3, heads_, width / heads_})
                                        .permute({2, 0, 3, 1, 4})
                                        .unbind(0);
  const Tensor attended =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, causal_);
  x = x + drop_->forward(out_->forward(attended.transpose(1, 2).reshape({batch, length, width})));
  return x + drop_->forward(down_->forward(at::gelu(up_->forward(norm2_->forward(x)), "tanh")));
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
  return word_scores(states(tokens), head());
}

Tensor GptImpl::loss(const Tensor& text) {
  const std::int64_t length = text.size(1) - 1;
  const Tensor scores = padded_word_scores(states(text.slice(1, 0, length)), head());
  return nn::functional::cross_entropy(scores.flatten(0, 1), text.slice(1, 1).flatten());
}

const Tensor& GptImpl::head() const {
  return options.tied ? tokens_->weight : head_->weight;
}

Tensor GptImpl::states(const Tensor& tokens) {
  TRIREME_CHECK(tokens.size(1) <= options.sequence,
                "this gpt sees {} tokens at a time, found {}",
                {options.sequence, tokens.size(1)});
  Tensor x = drop_->forward(tokens_->forward(tokens) +
                            places_->forward(torch::arange(tokens.size(1), tokens.options())));
  for (GptBlock& block : blocks_) {
    if (options.recompute) {
      x = recompute(
          block.ptr(), x, [layer = block.get()](const Tensor& in) { return layer->forward(in); });
    } else {
      x = block->forward(x);
    }
  }
  return norm_->forward(x);
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
  return {model.ptr(), [model = model.ptr()](const TensorBatch& batch) {
            return model->forward(batch.tokens.slice(1, 0, batch.tokens.size(1) - 1));
          }};
}

}  // namespace trireme::models
