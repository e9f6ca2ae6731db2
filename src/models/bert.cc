// A transformer that reads a text both ways and learns to fill in what is masked out of it, after
// BERT (Devlin et al., 2019): 15 % of the tokens of a sample are to be predicted, of which the
// model sees a mask (80 %), another token (10 %) or the token itself (10 %).

#include <algorithm>
#include <cmath>
#include <numeric>

#include <torch/nn/functional/loss.h>

#include "models/makers.h"
#include "nn/word_scores.h"
#include "trireme/core/random.h"
#include "trireme/nn/layer_norm.h"

namespace trireme::models {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

// As many of every sample, so that each counts the same, whatever micro-batch it is in.
std::int64_t masked_of(std::int64_t length) {
  return std::max<std::int64_t>(1, std::llround(0.15 * static_cast<double>(length)));
}

struct Masked {
  Tensor tokens;   // [samples, length], as the model sees them
  Tensor places;   // [samples, masked] of what is to be predicted
  Tensor targets;  // [samples, masked]
};

// Follows from the keys of the samples alone. The mask is the token after the last.
Masked masked(const TensorBatch& batch, std::int64_t vocabulary) {
  const Tensor given = batch.host_tokens.defined() ? batch.host_tokens : batch.tokens.cpu();
  const std::int64_t length = given.size(1) - 1;  // the last is a target of other models
  const std::int64_t count = masked_of(length);
  Masked result;
  result.tokens = given.slice(1, 0, length).clone(at::MemoryFormat::Contiguous);
  result.places = at::empty({batch.samples, count}, at::kLong);
  for (std::int64_t i = 0; i < batch.samples; ++i) {
    RandomStream random(batch.key(i));
    std::vector<std::int64_t> order(static_cast<std::size_t>(length));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    for (std::int64_t k = 0; k < count; ++k) {
      const auto rest = static_cast<std::uint64_t>(length - k);
      std::swap(order[static_cast<std::size_t>(k)],
                order[static_cast<std::size_t>(k) + random.below(rest)]);
    }
    std::copy_n(order.begin(), count, result.places.mutable_data_ptr<std::int64_t>() + i * count);
  }
  result.targets = result.tokens.gather(1, result.places);
  auto* tokens = result.tokens.mutable_data_ptr<std::int64_t>();
  const auto* places = result.places.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.samples * count; ++i) {
    RandomStream random(mix(batch.key(i / count), places[i]));
    std::int64_t& seen = tokens[i / count * length + places[i]];
    const std::uint64_t tenth = random.below(10);
    if (tenth < 8) {
      seen = vocabulary;
    } else if (tenth == 8) {
      seen = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(vocabulary)));
    }
  }
  for (Tensor* tensor : {&result.tokens, &result.places, &result.targets}) {
    *tensor = on_device(*tensor, batch.tokens.device());
  }
  return result;
}

// Scores are those of the places that are to be predicted.
class MaskedTokens final : public Task {
 public:
  using Task::Task;

  Tensor loss(const Tensor& scores, const TensorBatch& batch, double) const override {
    return losses(scores, masked(batch, shape().classes)).mean();
  }

  Judged judge(const Tensor& scores, const TensorBatch& batch) const override {
    const at::NoGradGuard no_grad;
    const Masked made = masked(batch, shape().classes);
    const Tensor each = losses(scores, made).view({batch.samples, -1}).sum(1).cpu();
    const Tensor correct = predicted_classes(scores).eq(made.targets).sum(1).cpu();
    Judged judged;
    judged.losses.assign(each.const_data_ptr<float>(), each.const_data_ptr<float>() + each.numel());
    judged.correct.assign(correct.const_data_ptr<std::int64_t>(),
                          correct.const_data_ptr<std::int64_t>() + correct.numel());
    return judged;
  }

  std::int64_t targets() const override { return masked_of(shape().length - 1); }

 private:
  static Tensor losses(const Tensor& scores, const Masked& made) {
    return nn::functional::cross_entropy(
        scores.to(at::kFloat).flatten(0, 1),
        made.targets.flatten(),
        nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  }
};

// Scores are products with the tokens' own embeddings.
class BertImpl : public nn::Module {
 public:
  explicit BertImpl(const GptOptions& options) : recompute_(options.recompute) {
    words_ = register_module("words", nn::Embedding(options.vocabulary, options.width));
    places_ = register_module("places", nn::Embedding(options.sequence, options.width));
    for (std::int64_t layer = 0; layer < options.layers; ++layer) {
      layers_.push_back(register_module("layer" + std::to_string(layer), GptBlock(options)));
    }
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({options.width})));
    drop_ = register_module("drop", nn::Dropout(options.dropout));
    initialise(*this, options.initialisation, options.layers);
  }

  // tokens [samples, length], places [samples, n] to scores [samples, n, vocabulary]
  Tensor forward(const Tensor& tokens, const Tensor& places) {
    Tensor x = drop_->forward(words_->forward(tokens) +
                              places_->forward(torch::arange(tokens.size(1), tokens.options())));
    x = sum_of_blocks(layers_, x, recompute_);
    x = x.gather(1, places.unsqueeze(2).expand({-1, -1, x.size(2)}));
    return trireme::nn::word_scores(trireme::nn::layer_norm(x, norm_->weight, norm_->bias),
                                    words_->weight);
  }

 private:
  bool recompute_;
  nn::Embedding words_{nullptr}, places_{nullptr};
  std::vector<GptBlock> layers_;
  nn::LayerNorm norm_{nullptr};
  nn::Dropout drop_{nullptr};
};

}  // namespace

Trainable make_bert(const TrainSettings& settings, const SampleShape& shape) {
  GptOptions options = text_options(settings, shape);
  options.vocabulary = shape.classes + 1;  // and the mask
  options.causal = false;
  const auto model = std::make_shared<BertImpl>(options);
  return {model,
          [model, vocabulary = shape.classes](const TensorBatch& batch) {
            const Masked made = masked(batch, vocabulary);
            return model->forward(made.tokens, made.places);
          },
          std::make_shared<const MaskedTokens>(shape)};
}

}  // namespace trireme::models
