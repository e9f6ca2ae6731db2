#include "parity/case.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

#include "support/ranks.h"
#include "trireme/core/environment.h"
#include "trireme/optim/parameter_groups.h"
#include "trireme/optim/square_sum.h"
#include "trireme/parallel/autocast.h"
#include "trireme/tensor/span.h"

namespace trireme::testing {

namespace nn = torch::nn;
using torch::Tensor;

Tensor sample(std::int64_t step,
              std::int64_t micro_batch,
              std::int64_t which,
              at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(
      static_cast<std::uint64_t>(step * 10'007 + micro_batch * 101 + which + 1));
  return torch::randn(sizes, generator, torch::kFloat);
}

namespace {

struct OddLayers : TestModel {
  nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  nn::LayerNorm norm{nullptr};
  OddLayers() {
    first = register_module("first", nn::Linear(7, 15));
    second = register_module("second", nn::Linear(nn::LinearOptions(15, 13).bias(false)));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({13})));
    last = register_module("last", nn::Linear(nn::LinearOptions(13, 7)));
    register_parameter("extra", torch::full({4}, 0.25));
  }
  Tensor loss(std::int64_t step, std::int64_t m) override {
    const auto type = first->weight.scalar_type();
    const Tensor x = sample(step, m, 0, {4, 7}).to(type);
    const Tensor y = sample(step, m, 1, {4, 7}).to(type);
    const Tensor out =
        last->forward(norm->forward(torch::tanh(second->forward(torch::gelu(first->forward(x))))));
    return ((out * (1 + named_parameters(false)["extra"].sum())) - y).pow(2).mean();
  }
};

struct TiedAndUnused : TestModel {
  nn::Embedding embedding{nullptr};
  nn::Linear body{nullptr}, never{nullptr}, sometimes{nullptr}, rarely{nullptr}, frozen{nullptr};
  Tensor head;
  TiedAndUnused() {
    embedding = register_module("embedding", nn::Embedding(11, 9));
    never = register_module("never", nn::Linear(3, 3));
    body = register_module("body", nn::Linear(9, 9));
    sometimes = register_module("sometimes", nn::Linear(9, 9));
    rarely = register_module("rarely", nn::Linear(9, 9));
    frozen = register_module("frozen", nn::Linear(9, 9));
    for (auto& parameter : frozen->parameters()) {
      parameter.requires_grad_(false);
    }
    head = register_parameter("head", embedding->weight);  // the same tensor
  }
  Tensor loss(std::int64_t step, std::int64_t m) override {
    const Tensor index = (sample(step, m, 0, {6}).abs() * 7).to(torch::kLong).remainder(11);
    const Tensor target = (sample(step, m, 1, {6}).abs() * 7).to(torch::kLong).remainder(11);
    Tensor x = embedding->forward(index);
    x = x + torch::tanh(body->forward(x));
    if (m % 3 == 1) {
      x = x + sometimes->forward(x);
    }
    if (step % 4 == 2 && m == 5) {
      x = x * torch::sigmoid(rarely->forward(x));
    }
    x = x + frozen->forward(x);
    return nn::functional::cross_entropy(torch::matmul(x, head.t()), target);
  }
};

struct Convolutions : TestModel {
  nn::Conv2d one{nullptr}, two{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear last{nullptr};
  Convolutions() {
    one = register_module("one", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)));
    two = register_module("two", nn::Conv2d(nn::Conv2dOptions(8, 5, 3)));
    norm = register_module("norm",
                           nn::BatchNorm2d(nn::BatchNorm2dOptions(5).track_running_stats(false)));
    last = register_module("last", nn::Linear(5, 2));
    one->weight.set_data(one->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
    two->weight.set_data(two->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
  }
  Tensor loss(std::int64_t step, std::int64_t m) override {
    const Tensor x = sample(step, m, 0, {2, 3, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast);
    const Tensor y = sample(step, m, 1, {2, 2});
    const Tensor h = norm->forward(two->forward(torch::relu(one->forward(x))));
    return (last->forward(h.mean({2, 3})) - y).pow(2).mean();
  }
};

struct Attention : TestModel {
  nn::Embedding tokens{nullptr}, places{nullptr};
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr}, head{nullptr};
  Attention() {
    tokens = register_module("tokens", nn::Embedding(23, 16));
    places = register_module("places", nn::Embedding(8, 16));
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({16})));
    qkv = register_module("qkv", nn::Linear(16, 48));
    out = register_module("out", nn::Linear(16, 16));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({16})));
    up = register_module("up", nn::Linear(16, 64));
    down = register_module("down", nn::Linear(64, 16));
    head = register_module("head", nn::Linear(nn::LinearOptions(16, 23).bias(false)));
  }
  Tensor loss(std::int64_t step, std::int64_t m) override {
    const Tensor text = (sample(step, m, 0, {2, 9}).abs() * 11).to(torch::kLong).remainder(23);
    const Tensor in = text.slice(1, 0, 8);
    Tensor x = tokens->forward(in) + places->forward(torch::arange(8));
    const Tensor parts =
        qkv->forward(norm1->forward(x)).view({2, 8, 3, 2, 8}).permute({2, 0, 3, 1, 4});
    const Tensor a = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + out->forward(a.transpose(1, 2).reshape({2, 8, 16}));
    x = x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
    return nn::functional::cross_entropy(head->forward(x).flatten(0, 1),
                                         text.slice(1, 1).flatten());
  }
};

struct Tiny : TestModel {
  Tensor a, b, empty;
  Tiny() {
    a = register_parameter("a", torch::full({1}, 0.5));
    b = register_parameter("b", torch::full({3, 1}, -0.25));
    empty = register_parameter("empty", torch::empty({0, 4}));
  }
  Tensor loss(std::int64_t step, std::int64_t m) override {
    const Tensor x = sample(step, m, 0, {2, 3}).to(a.scalar_type());
    return (torch::matmul(x, b) * a - x.sum()).pow(2).mean() + empty.sum();
  }
};

struct Broad : TestModel {
  nn::Linear up{nullptr}, down{nullptr};
  nn::LayerNorm norm{nullptr};
  Broad() {
    up = register_module("up", nn::Linear(48, 384));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({384})));
    down = register_module("down", nn::Linear(384, 48));
  }
  Tensor loss(std::int64_t step, std::int64_t m) override {
    const Tensor x = sample(step, m, 0, {128, 48});
    const Tensor y = sample(step, m, 1, {128, 48});
    return (down->forward(torch::gelu(norm->forward(up->forward(x)))) - y).pow(2).mean();
  }
};

template <class M>
std::shared_ptr<TestModel> build() {
  torch::manual_seed(1234);
  return std::make_shared<M>();
}

template <class O, class Options>
std::function<std::unique_ptr<Optimizer>()> with(const Options& options) {
  return [options] { return std::make_unique<O>(options); };
}

// For the matrices between embeddings and norms.
std::unique_ptr<Optimizer> with_muon() {
  const Selection matrices("hidden matrices", [](const ParameterInfo& p) {
    return p.sizes.size() == 2 && p.name != "tokens.weight" && p.name != "places.weight";
  });
  return std::make_unique<ParameterGroups>(
      AdamW({.lr = 3e-3, .weight_decay = 0.05}),
      std::vector<ParameterGroup>{{matrices, Muon({.lr = 2e-2})}});
}

std::vector<ParameterInfo> infos_of(const TestModel& model, const std::vector<Tensor>& parameters) {
  std::vector<ParameterInfo> infos;
  for (const Tensor& parameter : parameters) {
    for (const auto& item : model.named_parameters()) {
      if (item.value().is_same(parameter)) {
        infos.push_back({item.key(), parameter.sizes().vec(), parameter.strides().vec()});
        break;
      }
    }
  }
  return infos;
}

struct PlainSlice {
  void* master;
  const void* gradient;
};

// All that an update of a whole parameter is: passes, update, states that are not divided.
void update_whole(const Optimizer& rule,
                  WholeParameter whole,
                  const PlainSlice& values,
                  const std::array<void*, kMostOptimizerStates>& states,
                  const GradientTransform& transform) {
  ParameterSlice slice;
  slice.master = values.master;
  slice.gradient = values.gradient;
  slice.states = whole.states = states;
  slice.numel = whole.info.numel();
  slice.step = whole.step;
  slice.whole = &whole;
  for (const OptimizerPass& pass : rule.passes()) {
    std::vector<double> numbers(pass.count(whole.info));
    pass.measure(slice, transform, numbers.data());
    whole.measured.push_back(std::move(numbers));
    if (pass.then) {
      pass.then(whole);
    }
  }
  rule.update(slice, transform, rule.learning_rate());
  rule.finish(whole);
}

void append(Result* result, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  result->insert(result->end(), from, from + bytes);
}

}  // namespace

std::shared_ptr<TestModel> make_odd_layers() {
  return build<OddLayers>();
}
std::shared_ptr<TestModel> make_tied_and_unused() {
  return build<TiedAndUnused>();
}
std::shared_ptr<TestModel> make_convolutions() {
  return build<Convolutions>();
}
std::shared_ptr<TestModel> make_attention() {
  return build<Attention>();
}
std::shared_ptr<TestModel> make_tiny() {
  return build<Tiny>();
}

std::shared_ptr<TestModel> make_broad() {
  return build<Broad>();
}

std::vector<Case> float32_cases() {
  constexpr std::size_t kEverything = std::size_t{1} << 30;
  const auto sgd =
      with<Sgd>(SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true});
  const auto plain_sgd = with<Sgd>(SgdOptions{.lr = 0.02, .l1 = 1e-4});
  const auto adam = with<Adam>(AdamOptions{.lr = 3e-3, .weight_decay = 1e-3});
  const auto adamw = with<AdamW>(AdamWOptions{.lr = 3e-3, .weight_decay = 0.05});
  const auto lamb = with<Lamb>(LambOptions{.lr = 1e-2});
  const auto adagrad = with<Adagrad>(AdagradOptions{.lr = 2e-2});
  const auto lion = with<Lion>(LionOptions{.lr = 1e-3, .weight_decay = 0.1});
  const auto amsgrad = with<AdamW>(AdamWOptions{.lr = 3e-3, .beta2 = 0.8, .amsgrad = true});
  const auto rmsprop =
      with<Rmsprop>(RmspropOptions{.lr = 1e-3, .eps = 1e-4, .momentum = 0.9, .centered = true});
  const auto adafactor = with<Adafactor>(AdafactorOptions{.lr = 1e-2, .weight_decay = 0.1});
  const auto groups = [adamw] {
    return std::make_unique<ParameterGroups>(
        *adamw(),
        std::vector<ParameterGroup>{{biases_and_norms(), {.weight_decay = 0}},
                                    {named({"tokens.*", "places.*"}), {.lr = 1e-3, .beta2 = 0.95}},
                                    {named({"head.*"}), Lamb({.lr = 1e-2})},
                                    {named({"q*"}), Adafactor({.lr = 1e-2})}});
  };
  // States of one, two, three and none.
  const auto element_rules = [adamw, plain_sgd, lion, amsgrad] {
    return std::make_unique<ParameterGroups>(
        *adamw(),
        std::vector<ParameterGroup>{{biases_and_norms(), *plain_sgd()},
                                    {named({"tokens.*", "places.*"}), *lion()},
                                    {named({"head.*"}), *amsgrad()}});
  };
  const Offload disk = Offload::disk(std::filesystem::temp_directory_path().string());
  // Every optimizer, model, bucket size, unit size and split appears, and every pair that could
  // plausibly interact.
  std::vector<Case> cases = {
      {"sgd, odd, one parameter per bucket",
       make_odd_layers,
       sgd,
       0,
       {.unit_bytes = 1, .bucket_bytes = 1}},
      {"adamw, odd, everything in one",
       make_odd_layers,
       adamw,
       0,
       {.unit_bytes = kEverything, .bucket_bytes = kEverything}},
      {"adamw, odd, clipped, buckets cut parameters",
       make_odd_layers,
       adamw,
       0.05,
       {.unit_bytes = 700, .bucket_bytes = 128, .bucket_count = 2}},
      {"lamb, odd, by layer",
       make_odd_layers,
       lamb,
       0,
       {.unit_bytes = 500, .split = Split::kLayer, .bucket_bytes = 256}},
      {"lamb, tied, clipped",
       make_tied_and_unused,
       lamb,
       0.1,
       {.unit_bytes = 400, .bucket_bytes = 100}},
      {"adamw, tied", make_tied_and_unused, adamw, 0, {.unit_bytes = 400, .bucket_bytes = 4096}},
      {"sgd, tied, one slot",
       make_tied_and_unused,
       sgd,
       0.2,
       {.unit_bytes = 300, .bucket_bytes = 64, .bucket_count = 1}},
      {"adagrad, tied, by dimension",
       make_tied_and_unused,
       adagrad,
       0,
       {.unit_bytes = kEverything, .split = Split::kDimension, .bucket_bytes = 512}},
      {"adam, convolutions",
       make_convolutions,
       adam,
       0.5,
       {.unit_bytes = 900, .bucket_bytes = 300}},
      {"lion, convolutions",
       make_convolutions,
       lion,
       0,
       {.unit_bytes = kEverything, .bucket_bytes = 700}},
      {"adamw, attention",
       make_attention,
       adamw,
       1.0,
       {.unit_bytes = 4096, .bucket_bytes = 2048, .bucket_count = 3, .threads = 3}},
      {"plain sgd, attention",
       make_attention,
       plain_sgd,
       0,
       {.unit_bytes = 2048, .bucket_bytes = kEverything}},
      {"adamw, tiny", make_tiny, adamw, 0.01, {.unit_bytes = 1, .bucket_bytes = 1}},
      {"lion, tiny", make_tiny, lion, 0, {}},
      {.name = "adamw, odd, by shares",
       .model = make_odd_layers,
       .optimizer = adamw,
       .options = {.unit_bytes = 500, .bucket_bytes = 200},
       .uneven_shares = true},
      {"adam, odd, one unit at a time and the next ahead",
       make_odd_layers,
       adam,
       0,
       {.unit_bytes = 100, .bucket_bytes = 2048, .gather_bytes = 1, .prefetch = Prefetch::kOn}},
      {"sgd, tied, all units at a time and none ahead",
       make_tied_and_unused,
       sgd,
       0,
       {.unit_bytes = 300,
        .bucket_bytes = 500,
        .gather_bytes = kEverything,
        .prefetch = Prefetch::kOff}},
      {"adamw, odd, averaged",
       make_odd_layers,
       adamw,
       0,
       {.ema_decay = 0.9, .unit_bytes = 300, .bucket_bytes = 300}},
      {"amsgrad, odd, by layer",
       make_odd_layers,
       amsgrad,
       0,
       {.unit_bytes = 500, .split = Split::kLayer, .bucket_bytes = 256}},
      {"rmsprop, tied, clipped",
       make_tied_and_unused,
       rmsprop,
       0.1,
       {.unit_bytes = 400, .bucket_bytes = 100}},
      {"adafactor, convolutions",
       make_convolutions,
       adafactor,
       0.5,
       {.unit_bytes = 900, .bucket_bytes = 300}},
      {"adafactor, tied, averaged",
       make_tied_and_unused,
       adafactor,
       0,
       {.ema_decay = 0.9, .unit_bytes = 1200, .bucket_bytes = 300}},
      {"groups of rules, attention",
       make_attention,
       groups,
       1.0,
       {.unit_bytes = 4096, .bucket_bytes = 2048, .threads = 3}},
      {"muon and adamw, attention",
       make_attention,
       with_muon,
       1.0,
       {.unit_bytes = 4096, .bucket_bytes = 2048, .threads = 2}},
      {"adamw, tied, averaged, from a disk",
       make_tied_and_unused,
       adamw,
       0.1,
       {.offload = disk, .ema_decay = 0.9, .unit_bytes = 400, .bucket_bytes = 100}},
      {"groups of rules, attention, from a disk",
       make_attention,
       element_rules,
       1.0,
       {.offload = disk, .unit_bytes = 4096, .bucket_bytes = 2048, .threads = 3}},
      {"plain sgd, tiny, from a disk", make_tiny, plain_sgd, 0, {.offload = disk}},
  };
  for (Case& item : cases) {
    item.steps = env_integer("TRIREME_TEST_STEPS", 1, kSteps).value_or(8);
  }
  return cases;
}

std::vector<Case> half_cases() {
  const auto adamw = with<AdamW>(AdamWOptions{.lr = 3e-3, .weight_decay = 0.05});
  const auto lamb = with<Lamb>(LambOptions{.lr = 1e-2});
  const auto sgd = with<Sgd>(SgdOptions{.lr = 0.05, .momentum = 0.9});
  const auto adafactor = with<Adafactor>(AdafactorOptions{.lr = 1e-2, .weight_decay = 0.1});
  const Offload disk = Offload::disk(std::filesystem::temp_directory_path().string());
  return {
      {"bfloat16 adamw, odd",
       make_odd_layers,
       adamw,
       0.5,
       {.precision = Precision::kBFloat16, .unit_bytes = 400, .bucket_bytes = 128}},
      {"bfloat16 lamb, tiny", make_tiny, lamb, 0, {.precision = Precision::kBFloat16}},
      {"bfloat16 sgd, tied",
       make_tied_and_unused,
       sgd,
       0,
       {.precision = Precision::kBFloat16, .unit_bytes = 300, .bucket_bytes = 64}},
      {"float16 adamw, odd",
       make_odd_layers,
       adamw,
       0,
       {.precision = Precision::kFloat16,
        .loss_scale = {.initial = 16777216, .growth_interval = 4, .most = 0x1p40},
        .unit_bytes = 400,
        .bucket_bytes = 4096}},
      {"float16 adamw, attention",
       make_attention,
       adamw,
       1.0,
       {.precision = Precision::kFloat16,
        .loss_scale = {.initial = 1024},
        .unit_bytes = 3000,
        .bucket_bytes = 1000}},
      {"autocast adamw, attention",
       make_attention,
       adamw,
       1.0,
       {.unit_bytes = 3000, .bucket_bytes = 1000},
       true},
      {"bfloat16 adafactor, tied",
       make_tied_and_unused,
       adafactor,
       0,
       {.ema_decay = 0.9,
        .precision = Precision::kBFloat16,
        .unit_bytes = 400,
        .bucket_bytes = 128}},
      {"bfloat16 adamw, tied, averaged, from a disk",
       make_tied_and_unused,
       adamw,
       0.5,
       {.offload = disk,
        .ema_decay = 0.9,
        .precision = Precision::kBFloat16,
        .unit_bytes = 400,
        .bucket_bytes = 128}},
      {"float16 sgd, odd, from a disk",
       make_odd_layers,
       sgd,
       0,
       {.offload = disk,
        .precision = Precision::kFloat16,
        .loss_scale = {.initial = 16777216, .growth_interval = 4, .most = 0x1p40},
        .unit_bytes = 400,
        .bucket_bytes = 4096}},
      {"float16 muon and adamw, attention",
       make_attention,
       with_muon,
       1.0,
       {.precision = Precision::kFloat16,
        .loss_scale = {.initial = 1024},
        .unit_bytes = 3000,
        .bucket_bytes = 1000}},
  };
}

namespace {

// Each once, under the first of its names.
std::vector<std::pair<std::string, Tensor>> different_parameters(const nn::Module& model) {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& item : model.named_parameters()) {
    const auto same = [&](const auto& other) { return other.second.is_same(item.value()); };
    if (std::none_of(all.begin(), all.end(), same)) {
      all.emplace_back(item.key(), item.value());
    }
  }
  return all;
}

}  // namespace

Result train_plainly(const Case& item) {
  const auto model = item.model();
  const auto optimizer = item.optimizer();
  std::vector<Tensor> parameters;
  for (const auto& [name, parameter] : different_parameters(*model)) {
    parameters.push_back(parameter);
  }
  // As many numbers as a state may have: one for each element.
  std::vector<std::vector<float>> states[3];
  std::vector<std::int64_t> steps(parameters.size(), 0);
  const std::vector<ParameterInfo> infos = infos_of(*model, parameters);
  const std::vector<const Optimizer*> rules = optimizer->assign(infos);
  std::vector<Tensor> averages;
  for (const Tensor& parameter : parameters) {
    averages.push_back(parameter.detach().clone());
  }
  const double decay = item.options.ema_decay;
  for (auto& kind : states) {
    for (const Tensor& parameter : parameters) {
      kind.emplace_back(static_cast<std::size_t>(parameter.numel()), 0.0F);
    }
  }
  Result result;
  for (std::int64_t step = 0; step < item.steps; ++step) {
    std::vector<Tensor> sums(parameters.size());
    std::vector<Tensor> group(parameters.size());  // of the micro-batches since the last whole one
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      model->zero_grad();
      model->loss(step, m).backward();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const Tensor gradient = parameters[p].grad();
        if (gradient.defined()) {
          // In the memory order of the parameter, as its update is.
          Tensor ordered = torch::empty_like(parameters[p]).copy_(gradient).detach();
          group[p] = group[p].defined() ? group[p].add(ordered) : ordered;
        }
        const bool whole = (m + 1) % testing::sum_group() == 0 || m + 1 == kMicroBatches;
        if (whole && group[p].defined()) {
          sums[p] = sums[p].defined() ? sums[p].add(group[p]) : group[p];
          group[p] = Tensor();
        }
      }
    }
    model->zero_grad();
    const torch::NoGradGuard no_grad;
    GradientTransform transform{.divisor = kMicroBatches};
    if (item.clip_norm > 0) {
      double largest = 0;
      std::int64_t count = 0;
      for (const Tensor& sum : sums) {
        if (sum.defined()) {
          largest =
              std::max(largest,
                       sum.numel() == 0
                           ? 0.0
                           : (sum / static_cast<double>(kMicroBatches)).abs().max().item<double>());
          count += sum.numel();
        }
      }
      const SquareQuanta quanta = SquareQuanta::of(largest, count);
      SquareSum squares;
      for (const Tensor& sum : sums) {
        if (sum.defined()) {
          squares.add(sum_squares({sum.const_data_ptr(), sum.numel(), Dtype::kFloat32},
                                  quanta,
                                  {.divisor = kMicroBatches}));
        }
      }
      transform.clip_factor = clip_factor(squares.norm(), item.clip_norm);
      const double norm = squares.norm();
      append(&result, &norm, sizeof(norm));
    }
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (!sums[p].defined()) {
        continue;
      }
      update_whole(*rules[p],
                   {infos[p], Dtype::kFloat32, ++steps[p]},
                   {parameters[p].data_ptr(), sums[p].const_data_ptr()},
                   {states[0][p].data(), states[1][p].data(), states[2][p].data()},
                   transform);
    }
    for (std::size_t p = 0; decay > 0 && p < parameters.size(); ++p) {
      averages[p] = averages[p].mul(decay).add(parameters[p].mul(1 - decay));
    }
  }
  for (const Tensor& parameter : parameters) {
    append(&result, parameter.const_data_ptr(), parameter.nbytes());
  }
  for (std::size_t p = 0; decay > 0 && p < parameters.size(); ++p) {
    if (parameters[p].requires_grad()) {  // a frozen one has no average
      append(&result, averages[p].const_data_ptr(), averages[p].nbytes());
    }
  }
  return result;
}

Result train_with_engine(const Case& item, EngineOptions options, std::shared_ptr<World> world) {
  const auto model = item.model();
  options.micro_batches = kMicroBatches;
  EngineBase engine(model, *item.optimizer(), options, world);
  Result result;
  for (std::int64_t step = 0; step < item.steps; ++step) {
    double norm = 0;
    const auto finish = [&](bool last) {
      if (item.clip_norm > 0) {
        norm = engine.clip_grad_norm(item.clip_norm);
      }
      if (engine.step() != last) {
        throw std::runtime_error("step() does not know when a step is complete");
      }
    };
    for (std::int64_t m = world->rank(); m < kMicroBatches; m += world->size()) {
      const auto loss = [&] {
        std::optional<Autocast> scope;
        if (item.autocast) {
          scope.emplace();
        }
        return model->loss(step, m);
      };
      engine.backward(loss());
      finish(m + world->size() >= kMicroBatches);
    }
    if (engine.local_micro_batches() == 0) {
      finish(true);  // a rank that only looks after its part
    }
    if (item.clip_norm > 0) {
      append(&result, &norm, sizeof(norm));
    }
  }
  Result averages;
  for (const auto& [name, parameter] : different_parameters(*model)) {
    if (options.ema_decay > 0 && parameter.requires_grad()) {
      const Tensor average = engine.average(name);
      append(&averages, average.const_data_ptr(), average.nbytes());
    }
  }
  const auto scope = engine.gathered();
  for (const auto& [name, parameter] : different_parameters(*model)) {
    append(&result, parameter.const_data_ptr(), parameter.nbytes());
  }
  result.insert(result.end(), averages.begin(), averages.end());
  return result;
}

}  // namespace trireme::testing
