// The built-in models: shapes, sizes, beginnings; and activation checkpointing.

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include "trireme/core/error.h"
#include "trireme/models/convnet.h"
#include "trireme/models/gpt.h"
#include "trireme/models/mlp.h"
#include "trireme/models/recompute.h"
#include "trireme/models/task.h"
#include "trireme/models/wide.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/tensor/memory_limit.h"

namespace trireme::models::models_test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

std::int64_t parameters_of(const nn::Module& model) {
  std::int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

std::string bits_of(const Tensor& tensor) {
  const Tensor values = tensor.detach().contiguous();
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

// --- shapes and sizes

TEST(Mlp, HasTheSizeOfItsLayers) {
  Mlp model(MlpOptions{.inputs = 12, .hidden = {7, 5}, .outputs = 3});
  EXPECT_EQ(parameters_of(*model), 12 * 7 + 7 + 7 * 5 + 5 + 5 * 3 + 3);
  EXPECT_EQ(model->forward(at::randn({4, 3, 2, 2})).sizes(), at::IntArrayRef({4, 3}));
  Mlp linear(MlpOptions{.inputs = 12, .hidden = {}, .outputs = 1});
  EXPECT_EQ(parameters_of(*linear), 13);
  EXPECT_EQ(linear->forward(at::randn({2, 12})).sizes(), at::IntArrayRef({2, 1}));
  EXPECT_TRUE(contains(refusal_of([] { Mlp(MlpOptions{.hidden = {4, 0}}); }), "found 0"));
}

TEST(Convnet, HasTheSizeOfItsLayers) {
  Convnet model(ConvnetOptions{
      .channels = 3, .rows = 13, .columns = 9, .stages = {4, 6}, .hidden = 11, .outputs = 5});
  EXPECT_EQ(parameters_of(*model),
            3 * 4 * 9 + 2 * 4 + 4 * 6 * 9 + 2 * 6 + (6 * 3 * 2) * 11 + 11 + 11 * 5 + 5);
  EXPECT_EQ(model->forward(at::randn({2, 3, 13, 9})).sizes(), at::IntArrayRef({2, 5}));
  EXPECT_TRUE(contains(refusal_of([] {
                         Convnet(ConvnetOptions{.rows = 3, .columns = 8, .stages = {2, 2}});
                       }),
                       "3 x 8 is too small"));
}

std::int64_t gpt_parameters(const GptOptions& o) {
  const std::int64_t w = o.width;
  const std::int64_t block =
      2 * 2 * w + (3 * w * w + 3 * w) + (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w);
  return o.vocabulary * w * (o.tied ? 1 : 2) + o.sequence * w + o.layers * block + 2 * w;
}

TEST(Gpt, HasTheSizeOfItsLayers) {
  GptOptions options{.vocabulary = 31, .sequence = 8, .width = 12, .layers = 2, .heads = 3};
  for (const bool tied : {false, true}) {
    options.tied = tied;
    Gpt model(options);
    EXPECT_EQ(parameters_of(*model), gpt_parameters(options));
    const Tensor tokens = at::randint(31, {2, 5}, at::kLong);
    EXPECT_EQ(model->forward(tokens).sizes(), at::IntArrayRef({2, 5, 31}));
    // What comes later changes nothing of what comes before.
    Tensor other = tokens.clone();
    other.select(1, 4).fill_(1);
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(
        model->forward(tokens).slice(1, 0, 4), model->forward(other).slice(1, 0, 4), 1e-5, 1e-6));
    const Tensor text = at::randint(31, {2, 6}, at::kLong);
    EXPECT_EQ(model->loss(text).numel(), 1);
    EXPECT_TRUE(contains(refusal_of([&] {
                           model->forward(at::zeros({1, 9}, at::kLong));
                         }),
                         "8 tokens at a time, found 9"));
  }
  // The published size of GPT-2.
  const GptOptions gpt2 = GptOptions::of_size(TextSize::kGpt2);
  EXPECT_EQ(gpt_parameters(gpt2), 124'439'808);
  EXPECT_EQ(gpt2.vocabulary, 50257);
  const GptOptions tiny = GptOptions::of_size(TextSize::kTiny);
  EXPECT_EQ(parameters_of(*Gpt(tiny)), gpt_parameters(tiny));
  EXPECT_TRUE(contains(refusal_of([] { Gpt(GptOptions{.width = 10, .heads = 3}); }), "10 and 3"));
}

// --- bert

constexpr std::int64_t kLetters = 7;
constexpr std::int64_t kLength = 40;  // of which 15 % is 6

TrainSettings bert_settings() {
  TrainSettings settings;
  settings.model = "bert";
  settings.layers = 2;
  settings.width = 12;
  settings.heads = 3;
  return resolve(settings);
}

SampleShape text_shape() {
  SampleShape shape;
  shape.kind = SampleKind::kTokens;
  shape.length = kLength + 1;
  shape.classes = kLetters;
  return shape;
}

TensorBatch text_batch(const Batch& batch, std::uint64_t seed = 0) {
  TensorBatch tensors = as_tensors(batch, text_shape());
  tensors.seed = seed;
  return tensors;
}

Batch text_of(const std::vector<std::int64_t>& samples) {
  Batch batch;
  batch.samples = static_cast<std::int64_t>(samples.size());
  batch.ids = samples;
  for (const std::int64_t sample : samples) {
    for (std::int64_t i = 0; i <= kLength; ++i) {
      batch.tokens.push_back((sample * sample + i * (sample + 1)) % kLetters);
    }
  }
  return batch;
}

TEST(Bert, HasTheSizeOfItsLayers) {
  const Trainable model = make_model(bert_settings(), text_shape());
  const std::int64_t w = 12;
  const std::int64_t block =
      2 * 2 * w + (3 * w * w + 3 * w) + (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w);
  EXPECT_EQ(parameters_of(*model.module), (kLetters + 1) * w + kLength * w + 2 * block + 2 * w);
  const Batch batch = text_of({3, 5});
  EXPECT_EQ(model.scores(text_batch(batch)).sizes(), at::IntArrayRef({2, 6, kLetters + 1}));
  EXPECT_EQ(model.task->targets(), 6);
}

// What a bert sees where it is to predict: a model that can only repeat what it sees says it. Its
// layers add nothing, and a token's embedding is a unit vector.
TEST(Bert, SeesAMaskAnotherTokenOrTheTokenItself) {
  const Trainable model = make_model(bert_settings(), text_shape());
  const torch::NoGradGuard no_grad;
  for (const auto& item : model.module->named_parameters()) {
    const bool adds = contains(item.key(), ".out.") || contains(item.key(), ".down.");
    if (adds || item.key() == "places.weight") {
      item.value().zero_();
    } else if (item.key() == "words.weight") {
      item.value().copy_(at::eye(kLetters + 1, 12));
    }
  }
  std::vector<std::int64_t> ids(4000);
  std::iota(ids.begin(), ids.end(), 0);
  const Batch batch = text_of(ids);
  const TensorBatch tensors = text_batch(batch, /*seed=*/9);
  const Tensor scores = model.scores(tensors);
  const Tensor seen = scores.argmax(-1);
  const auto n = static_cast<double>(seen.numel());
  const auto expect_share = [&](double found, double share) {
    EXPECT_NEAR(found / n, share, 6 * std::sqrt(share * (1 - share) / n));
  };
  expect_share(seen.eq(kLetters).sum().item<double>(), 0.8);
  // What is seen as it is: left alone, or replaced by the same token.
  const Task::Judged judged = model.task->judge(scores, tensors);
  double same = 0;
  for (const std::int64_t correct : judged.correct) {
    same += static_cast<double>(correct);
  }
  expect_share(same, 0.1 + 0.1 / kLetters);
  // The loss is that of those places: a formula of how often the score of the target is the large
  // one. The norm of a unit vector in 12 dimensions has two values.
  const double mean = 1.0 / 12;
  const double deviation = std::sqrt(mean - mean * mean + 1e-5);
  const double high = std::exp((1 - mean) / deviation);
  const double low = std::exp(-mean / deviation);
  const double sum = std::log(high + kLetters * low);
  const double expected = sum - (same / n * (1 - mean) + (1 - same / n) * -mean) / deviation;
  EXPECT_NEAR(model.task->loss(scores, tensors).item<double>(), expected, 1e-4);
  double total = 0;
  for (const float loss : judged.losses) {
    total += loss;
  }
  EXPECT_NEAR(total / n, expected, 1e-4);
}

// Masks follow from the sample in evaluation, and in training from the micro-batch: from nothing
// else that a batch has.
TEST(Bert, MasksFollowFromTheSampleOrTheMicroBatch) {
  at::set_num_threads(1);
  const Trainable model = make_model(bert_settings(), text_shape());
  model.module->eval();
  const torch::NoGradGuard no_grad;
  const auto losses = [&](const std::vector<std::int64_t>& ids, std::uint64_t seed) {
    const Batch batch = text_of(ids);
    const TensorBatch tensors = text_batch(batch, seed);
    return model.task->judge(model.scores(tensors), tensors).losses;
  };
  const std::vector<float> together = losses({4, 9, 2}, 0);
  EXPECT_NEAR(losses({9}, 0)[0], together[1], 1e-4);
  EXPECT_NEAR(losses({2, 4}, 0)[1], together[0], 1e-4);
  EXPECT_EQ(losses({4, 9, 2}, 8), losses({4, 9, 2}, 8));
  EXPECT_NE(losses({4, 9, 2}, 8), losses({4, 9, 2}, 7));
  EXPECT_NE(losses({4, 9, 2}, 8), together);
}

// --- beginnings

// The sample variance of n normal numbers has a standard error of sqrt(2 / n) of the variance; of
// uniform ones, sqrt(0.8 / n). Six of them, and the mean within six of its own.
void expect_variance(const Tensor& weight, double variance) {
  const Tensor values = weight.detach().to(at::kDouble).flatten();
  const auto n = static_cast<double>(values.numel());
  const double mean = values.mean().item<double>();
  EXPECT_NEAR(mean, 0, 6 * std::sqrt(variance / n));
  EXPECT_NEAR(values.square().mean().item<double>(), variance, 6 * variance * std::sqrt(2 / n));
}

TEST(Initialisation, HasTheVarianceOfItsFormula) {
  torch::manual_seed(11);
  Mlp he(MlpOptions{
      .inputs = 300, .hidden = {400}, .outputs = 200, .initialisation = Initialisation::kHe});
  expect_variance(he->named_parameters()["layer0.weight"], 2.0 / 300);
  expect_variance(he->named_parameters()["head.weight"], 2.0 / 400);
  EXPECT_EQ(he->named_parameters()["head.bias"].abs().max().item<float>(), 0);

  Convnet images(ConvnetOptions{
      .channels = 8, .stages = {64}, .hidden = 64, .initialisation = Initialisation::kHe});
  expect_variance(images->named_parameters()["stage0.convolution.weight"], 2.0 / (8 * 9));
  EXPECT_EQ(images->named_parameters()["stage0.norm.weight"].min().item<float>(), 1);

  Mlp xavier(MlpOptions{
      .inputs = 300, .hidden = {400}, .outputs = 200, .initialisation = Initialisation::kXavier});
  const Tensor uniform = xavier->named_parameters()["layer0.weight"];
  expect_variance(uniform, 2.0 / (300 + 400));
  EXPECT_LE(uniform.abs().max().item<double>(), std::sqrt(6.0 / 700) * (1 + 1e-6));

  Gpt gpt(GptOptions{.vocabulary = 200,
                     .sequence = 50,
                     .width = 96,
                     .layers = 8,
                     .heads = 4,
                     .initialisation = Initialisation::kGpt2});
  auto weights = gpt->named_parameters();
  expect_variance(weights["tokens.weight"], 4e-4);
  expect_variance(weights["block3.qkv.weight"], 4e-4);
  expect_variance(weights["block3.out.weight"], 4e-4 / 16);
  expect_variance(weights["block7.down.weight"], 4e-4 / 16);
  expect_variance(weights["head.weight"], 4e-4);

  // The seed fixes it, and nothing else.
  torch::manual_seed(4);
  const Tensor first = Mlp(MlpOptions{})->parameters()[0];
  torch::manual_seed(4);
  EXPECT_EQ(bits_of(first), bits_of(Mlp(MlpOptions{})->parameters()[0]));
  const MlpOptions unresolved{.initialisation = Initialisation::kAutomatic};
  EXPECT_TRUE(contains(refusal_of([&] { const Mlp none(unresolved); }), "found auto"));
}

// --- activation checkpointing

struct Trace {
  std::vector<std::string> bits;  // output, gradients, buffers, the next random number
};

template <class Model>
Trace trace(Model& model, const Tensor& input, bool input_needs_gradient) {
  torch::manual_seed(21);
  Trace result;
  for (int pass = 0; pass < 2; ++pass) {
    const Tensor x =
        input.is_floating_point() ? input.clone().requires_grad_(input_needs_gradient) : input;
    model->zero_grad();
    const Tensor output = model->forward(x);
    result.bits.push_back(bits_of(output));
    output.square().mean().backward();
    for (const auto& item : model->named_parameters()) {
      result.bits.push_back(item.key() + bits_of(item.value().grad()));
    }
    for (const auto& item : model->named_buffers()) {
      result.bits.push_back(item.key() + bits_of(item.value()));
    }
    if (x.requires_grad()) {
      result.bits.push_back(bits_of(x.grad()));
    }
    result.bits.push_back(bits_of(at::rand({3})));
  }
  return result;
}

// The model with and without, from the same weights.
template <class Holder, class Options>
void expect_same_bits(Options options, const Tensor& input) {
  for (const bool input_needs_gradient : {false, true}) {
    std::vector<Trace> traces;
    for (const bool recompute : {false, true}) {
      options.recompute = recompute;
      torch::manual_seed(8);
      Holder model(options);
      model->train();
      traces.push_back(trace(model, input, input_needs_gradient));
    }
    EXPECT_EQ(traces[0].bits, traces[1].bits);
  }
}

TEST(Recompute, GivesTheSameBits) {
  at::set_num_threads(1);
  expect_same_bits<Mlp>(MlpOptions{.inputs = 20, .hidden = {16, 12}, .outputs = 4, .dropout = 0.3},
                        at::randn({6, 20}));
  expect_same_bits<Convnet>(
      ConvnetOptions{.rows = 12, .columns = 12, .stages = {4, 6}, .hidden = 8, .dropout = 0.3},
      at::randn({5, 1, 12, 12}));
  for (const bool tied : {false, true}) {
    expect_same_bits<Gpt>(GptOptions{.vocabulary = 20,
                                     .sequence = 8,
                                     .width = 16,
                                     .layers = 3,
                                     .heads = 2,
                                     .dropout = 0.2,
                                     .tied = tied},
                          at::randint(20, {2, 8}, at::kLong));
  }
}

// Two layers that share a weight: registered twice, its gradient counts once for each use.
struct SharedImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  bool recomputes;
  explicit SharedImpl(bool again) : recomputes(again) {
    first = register_module("first", nn::Linear(6, 6));
    second = register_module("second", first);
  }
  Tensor inside(const Tensor& x) { return at::tanh(second->forward(at::tanh(first->forward(x)))); }
  Tensor forward(const Tensor& x) {
    const auto run = [this](const Tensor& in) { return inside(in); };
    return recomputes ? recompute(shared_from_this(), x, run) : run(x);
  }
};
TORCH_MODULE(Shared);

TEST(Recompute, CountsSharedParametersOnce) {
  std::vector<Trace> traces;
  for (const bool again : {false, true}) {
    torch::manual_seed(8);
    Shared model(again);
    traces.push_back(trace(model, at::ones({3, 6}), true));
  }
  EXPECT_EQ(traces[0].bits, traces[1].bits);
}

// An inner recomputation inside of an outer one, around a frozen layer, on integer input.
struct NestedImpl : nn::Module {
  nn::Embedding table{nullptr};
  Mlp inner{nullptr};
  nn::Linear frozen{nullptr};
  bool recomputes;
  explicit NestedImpl(bool again) : recomputes(again) {
    table = register_module("table", nn::Embedding(9, 8));
    inner = register_module(
        "inner",
        Mlp(MlpOptions{
            .inputs = 8, .hidden = {7, 6}, .outputs = 5, .dropout = 0.4, .recompute = again}));
    frozen = register_module("frozen", nn::Linear(5, 5));
    frozen->weight.requires_grad_(false);
  }
  Tensor forward(const Tensor& ids) {
    const auto run = [this](const Tensor& in) {
      return frozen->forward(inner->forward(table->forward(in)));
    };
    return recomputes ? recompute(shared_from_this(), ids, run) : run(ids);
  }
};
TORCH_MODULE(Nested);

TEST(Recompute, MayBeNestedAndTakesIntegers) {
  std::vector<std::vector<std::string>> results;
  for (const bool again : {false, true}) {
    torch::manual_seed(8);
    Nested model(again);
    torch::manual_seed(9);
    const Tensor output = model->forward(at::arange(9));
    output.square().mean().backward();
    std::vector<std::string> bits = {bits_of(output), bits_of(at::rand({2}))};
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(item.value().grad().defined(), item.value().requires_grad()) << item.key();
      if (item.value().grad().defined()) {
        bits.push_back(item.key() + bits_of(item.value().grad()));
      }
    }
    results.push_back(bits);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Recompute, RunsAgainInThePrecisionOfTheFirstTime) {
  std::vector<std::vector<std::string>> results;
  for (const bool again : {false, true}) {
    torch::manual_seed(8);
    Mlp model(MlpOptions{.inputs = 20, .hidden = {16, 12}, .outputs = 4, .recompute = again});
    const Tensor x = at::ones({3, 20});
    Tensor loss;
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    loss = model->forward(x).to(at::kFloat).square().mean();
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
    std::vector<std::string> bits = {bits_of(loss)};
    for (const auto& item : model->named_parameters()) {
      bits.push_back(item.key() + bits_of(item.value().grad()));
    }
    results.push_back(bits);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Recompute, EvaluationAndFrozenModels) {
  torch::manual_seed(8);
  Convnet model(
      ConvnetOptions{.rows = 12, .columns = 12, .stages = {4}, .hidden = 8, .recompute = true});
  const Tensor x = at::randn({3, 1, 12, 12});
  model->forward(x);  // running statistics that are not those of the beginning
  model->eval();
  const Tensor with_graph = model->forward(x);
  with_graph.sum().backward();
  EXPECT_TRUE(model->parameters()[0].grad().defined());
  {
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(bits_of(model->forward(x)), bits_of(with_graph));
    EXPECT_FALSE(model->forward(x).requires_grad());
  }
  for (Tensor& parameter : model->parameters()) {
    parameter.requires_grad_(false);
  }
  EXPECT_FALSE(model->forward(x).requires_grad());
  Tensor needs = x.clone().requires_grad_(true);
  model->forward(needs).sum().backward();
  EXPECT_TRUE(needs.grad().defined());
}

TEST(Recompute, KeepsLessMemory) {
  MemoryLimit::set(0);
  std::vector<std::int64_t> kept;
  std::vector<std::int64_t> peaks;
  for (const bool again : {false, true}) {
    torch::manual_seed(8);
    Gpt model(GptOptions{.vocabulary = 32,
                         .sequence = 64,
                         .width = 64,
                         .layers = 6,
                         .heads = 4,
                         .recompute = again});
    const Tensor text = at::randint(32, {4, 65}, at::kLong);
    const auto before = static_cast<std::int64_t>(MemoryLimit::used_bytes());
    MemoryLimit::reset_peak();
    const Tensor loss = model->loss(text);
    kept.push_back(static_cast<std::int64_t>(MemoryLimit::used_bytes()) - before);
    loss.backward();
    peaks.push_back(static_cast<std::int64_t>(MemoryLimit::peak_bytes()) - before);
  }
  EXPECT_LT(kept[1], kept[0] / 3);
  EXPECT_LT(peaks[1], peaks[0] * 2 / 3);
  // One activation of each layer (4 x 64 x 64 floats), and what is outside of them.
  EXPECT_GE(kept[1], 6 * 4 * 64 * 64 * 4);
}

TEST(Recompute, AnExceptionPutsEverythingBack) {
  torch::manual_seed(8);
  nn::BatchNorm1d block(4);
  bool fails = false;
  const Tensor output = recompute(block.ptr(), at::randn({5, 4}), [&](const Tensor& in) {
    const Tensor result = block->forward(at::dropout(in, 0.5, true));
    if (fails) {
      throw MemoryError("no room");
    }
    return result;
  });
  const std::string buffers = bits_of(block->buffers()[0]);
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  fails = true;
  EXPECT_THROW(output.sum().backward(), MemoryError);
  EXPECT_EQ(bits_of(block->buffers()[0]), buffers);
  EXPECT_TRUE(torch::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
}

// --- wide

TEST(Wide, SparseGradientIsTheDenseOne) {
  torch::manual_seed(2);
  Wide model(WideOptions{.features = 30, .width = 5, .outputs = 3});
  EXPECT_EQ(parameters_of(*model), 30 * 5 + 5 * 3 + 3);
  // Three samples, one without a feature, a feature that comes twice in one.
  const std::vector<std::int64_t> indices = {4, 7, 4, 29, 0, 7};
  const std::vector<std::int64_t> offsets = {0, 3, 3, 6};
  const Tensor values = at::randn({6});
  const Tensor scores = model->forward(torch::tensor(indices), values, torch::tensor(offsets));
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({3, 3}));
  scores.square().sum().backward();
  const Tensor table = model->named_parameters()["table.weight"];
  EXPECT_TRUE(table.grad().is_sparse());

  Tensor features = at::zeros({3, 30});
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      features[static_cast<std::int64_t>(row)][indices[static_cast<std::size_t>(i)]] += values[i];
    }
  }
  const Tensor dense = table.detach().clone().requires_grad_(true);
  const Tensor head = model->named_parameters()["head.weight"].detach();
  const Tensor bias = model->named_parameters()["head.bias"].detach();
  const Tensor expected = at::linear(features.matmul(dense), head, bias);
  EXPECT_TRUE(at::allclose(scores.detach(), expected.detach(), 1e-5, 1e-6));
  expected.square().sum().backward();
  EXPECT_TRUE(at::allclose(table.grad().to_dense(), dense.grad(), 1e-5, 1e-6));
  EXPECT_TRUE(contains(refusal_of([] { Wide(WideOptions{.features = 0}); }), "found 0"));
}

}  // namespace
}  // namespace trireme::models::models_test
