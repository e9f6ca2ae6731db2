#include "trireme/models/gpt.h"

#include <string>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/functional/loss.h>

#include "trireme/core/error.h"
#include "trireme/models/recompute.h"

namespace trireme::models {

namespace nn = torch::nn;
using torch::Tensor;

GptOptions GptOptions::of_size(const std::string& size) {
  if (size == "tiny") {
    return {.vocabulary = 256, .sequence = 64, .width = 128, .layers = 4, .heads = 4};
  }
  if (size == "small") {
    return {.vocabulary = 256, .sequence = 256, .width = 384, .layers = 6, .heads = 6};
  }
  TRIREME_CHECK(
      size == "gpt2", "size of a gpt: expected tiny, small or gpt2, found \"", size, "\"");
  return {
      .vocabulary = 50257, .sequence = 1024, .width = 768, .layers = 12, .heads = 12, .tied = true};
}

GptBlockImpl::GptBlockImpl(const GptOptions& options) : heads_(options.heads) {
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
  const Tensor parts = qkv_->forward(norm1_->forward(x))
                           .view({batch, length, 3, heads_, width / heads_})
                           .permute({2, 0, 3, 1, 4});
  const Tensor attended =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
  x = x + drop_->forward(out_->forward(attended.transpose(1, 2).reshape({batch, length, width})));
  return x + drop_->forward(down_->forward(at::gelu(up_->forward(norm2_->forward(x)), "tanh")));
}

GptImpl::GptImpl(const GptOptions& given) : options(given) {
  TRIREME_CHECK(options.heads > 0 && options.width % options.heads == 0,
                "a GPT's width must be a multiple of its heads, found ",
                options.width,
                " and ",
                options.heads);
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
  TRIREME_CHECK(tokens.size(1) <= options.sequence,
                "this gpt sees ",
                options.sequence,
                " tokens at a time, found ",
                tokens.size(1));
  Tensor x =
      drop_->forward(tokens_->forward(tokens) + places_->forward(torch::arange(tokens.size(1))));
  for (GptBlock& block : blocks_) {
    if (options.recompute) {
      x = recompute(
          block.ptr(), x, [layer = block.get()](const Tensor& in) { return layer->forward(in); });
    } else {
      x = block->forward(x);
    }
  }
  x = norm_->forward(x);
  return options.tied ? at::linear(x, tokens_->weight) : head_->forward(x);
}

Tensor GptImpl::loss(const Tensor& text) {
  const std::int64_t length = text.size(1) - 1;
  return nn::functional::cross_entropy(forward(text.slice(1, 0, length)).flatten(0, 1),
                                       text.slice(1, 1).flatten());
}

}  // namespace trireme::models
