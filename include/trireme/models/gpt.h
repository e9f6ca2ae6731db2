#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "trireme/models/initialisation.h"

namespace trireme::models {

struct GptOptions {
  std::int64_t vocabulary = 512;
  std::int64_t sequence = 64;  // the longest
  std::int64_t width = 512;
  std::int64_t layers = 8;
  std::int64_t heads = 8;
  double dropout = 0;      // after the embeddings and at the end of each branch
  bool tied = false;       // scores are products with the tokens' own embeddings, as in GPT-2
  bool recompute = false;  // each layer's activations, in backward, instead of keeping them
  bool causal = true;      // of the layers: each place sees those before it; else all
  Initialisation initialisation = Initialisation::kTorch;

  // The sizes people know: kTiny (4 layers of width 128), kSmall (6 of 384), kGpt2 (12 of 768,
  // tied, 124 million parameters with GPT-2's vocabulary).
  static GptOptions of_size(TextSize size);
};

// What goes from layer to layer: x, to which branch + bias still has to be added, where they are
// there.
struct ResidualStream {
  torch::Tensor x;
  torch::Tensor branch{};
  torch::Tensor bias{};
};

// A transformer layer: attention and a feed-forward net of four times the width, each
// behind a norm and beside a residual connection.
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  torch::Tensor forward(const torch::Tensor& x);
  // The same, but the last sum is left to the norm that follows.
  ResidualStream forward(const ResidualStream& in);

 private:
  ResidualStream with_branch(const torch::Tensor& x,
                             torch::nn::Linear& last,
                             const torch::Tensor& in);

  std::int64_t heads_;
  bool causal_;
  torch::nn::Dropout drop_{nullptr};
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, out_{nullptr}, up_{nullptr}, down_{nullptr};
};
TORCH_MODULE(GptBlock);

// A decoder-only transformer: tokens [batch, length] to scores [batch, length, vocabulary].
class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptOptions& options = {});
  torch::Tensor forward(const torch::Tensor& tokens);
  // Cross entropy of predicting each token of `text` [batch, length + 1] from those before it.
  torch::Tensor loss(const torch::Tensor& text);

  const GptOptions options;

 private:
  // What the blocks make of tokens: [batch, length, width].
  torch::Tensor states(const torch::Tensor& tokens);
  const torch::Tensor& head() const;

  torch::nn::Dropout drop_{nullptr};
  torch::nn::Embedding tokens_{nullptr}, places_{nullptr};
  std::vector<GptBlock> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace trireme::models
