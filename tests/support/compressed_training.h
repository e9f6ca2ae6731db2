#pragma once

// A training with compressed gradients, by plain LibTorch and in one process: what engines are
// compared with. Every number of it is exact or rounded once, so that there is one right answer.

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "support/torch.h"
#include "trireme/parallel/engine.h"

namespace trireme::testing {

// Odd sizes; a matrix of several blocks, which owners divide in the middle of one; a bias that only
// some micro-batches use.
struct OddNetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor extra;

  OddNetImpl() {
    torch::manual_seed(11);
    first = register_module("first", torch::nn::Linear(40, 33));
    second = register_module("second", torch::nn::Linear(33, 5));
    extra = register_parameter("extra", torch::randn({33}));
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_extra) {
    const torch::Tensor hidden = first->forward(x.to(first->weight.dtype()));
    return second->forward(torch::tanh(with_extra ? hidden + extra : hidden));
  }
};
TORCH_MODULE(OddNet);

inline constexpr double kOddRate = 0.125;
inline constexpr int kOddSteps = 3;

inline torch::Tensor odd_loss(const std::function<torch::Tensor(torch::Tensor, bool)>& forward,
                              int step,
                              std::int64_t micro_batch) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * step + micro_batch));
  const torch::Tensor x = torch::randn({4, 40}, generator, torch::kFloat);
  return (forward(x, micro_batch % 3 != 1) - 0.5).pow(2).mean();
}

inline std::vector<float> flat_weights(torch::nn::Module& model) {
  std::vector<float> all;
  for (const torch::Tensor& parameter : model.parameters()) {
    const torch::Tensor flat = parameter.detach().to(torch::kFloat).contiguous();
    const auto* values = static_cast<const float*>(flat.const_data_ptr());
    all.insert(all.end(), values, values + flat.numel());
  }
  return all;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Blocks of a tensor as rows; the last one is filled up with zeros.
inline torch::Tensor in_blocks(const torch::Tensor& flat, std::int64_t block) {
  const std::int64_t missing = (block - flat.numel() % block) % block;
  return torch::cat({flat, torch::zeros({missing})}).reshape({-1, block});
}

// What arrives of a gradient, by LibTorch's own conversions. Of topk a quarter of each block.
inline torch::Tensor arrives(const std::string& format, const torch::Tensor& gradient) {
  const torch::Tensor flat = gradient.flatten();
  torch::Tensor blocks;
  if (format == "bf16") {
    blocks = flat.to(torch::kBFloat16).to(torch::kFloat);
  } else if (format == "fp16") {
    blocks = in_blocks(flat, 128);
    const torch::Tensor most = blocks.abs().amax(1, true);
    // frexp's exponent of the largest, 0 of zeros
    const torch::Tensor exponent = 15 - std::get<1>(torch::frexp(most));
    const torch::Tensor scale = torch::ldexp(torch::ones_like(most), exponent);
    blocks = (blocks * scale).to(torch::kHalf).to(torch::kFloat) / scale;
  } else if (format == "topk:0.25") {
    for (std::int64_t begin = 0; begin < flat.numel(); begin += 1024) {
      const torch::Tensor block = flat.slice(0, begin, std::min(flat.numel(), begin + 1024));
      const auto kept =
          std::max<std::int64_t>(1, std::lround(0.25 * static_cast<double>(block.numel())));
      const torch::Tensor order = std::get<1>(block.abs().sort(/*stable=*/true, 0, true));
      const torch::Tensor largest = order.slice(0, 0, kept);
      torch::Tensor some = torch::zeros_like(block);
      some.index_put_({largest}, block.index({largest}));
      blocks = blocks.defined() ? torch::cat({blocks, some}) : some;
    }
  } else {
    blocks = in_blocks(flat, 256);
    const torch::Tensor step = blocks.abs().amax(1, true) / 127;
    // Whole numbers have no negative zero.
    const torch::Tensor numbers = torch::round(blocks / step) + 0.0;
    blocks = torch::where(step > 0, numbers * step, torch::zeros_like(blocks));
  }
  return blocks.flatten().slice(0, 0, flat.numel()).reshape(gradient.sizes());
}

// A gradient of parameter p, of one micro-batch or (kSum) of their sum, on its way.
inline constexpr std::int64_t kSum = -1;
using Arrive =
    std::function<torch::Tensor(const torch::Tensor&, std::int64_t micro_batch, std::size_t p)>;

inline Arrive without_feedback(const std::string& format) {
  return [=](const torch::Tensor& gradient, std::int64_t, std::size_t) {
    return arrives(format, gradient);
  };
}

// With what was left out of the same micro-batch's before: e = e + g - sent. `momentum`: with that
// of the micro-batch's gradients, u = m u + g, for g (not of the sum).
inline Arrive with_feedback(const std::string& format, double momentum = 0) {
  using Kept = std::map<std::pair<std::int64_t, std::size_t>, torch::Tensor>;
  auto rest = std::make_shared<Kept>();
  auto velocity = std::make_shared<Kept>();
  return [=](const torch::Tensor& gradient, std::int64_t micro_batch, std::size_t p) {
    torch::Tensor moved = gradient;
    if (momentum > 0 && micro_batch != kSum) {
      torch::Tensor& u = (*velocity)[{micro_batch, p}];
      u = u.defined() ? u * momentum + gradient : gradient.clone();
      moved = u;
    }
    torch::Tensor& kept = (*rest)[{micro_batch, p}];
    const torch::Tensor whole = kept.defined() ? kept + moved : moved;
    const torch::Tensor sent = arrives(format, whole);
    kept = whole - sent;
    return sent;
  };
}

inline Arrive exactly() {
  return [](const torch::Tensor& gradient, std::int64_t, std::size_t) { return gradient; };
}

// What a model computes with where its weights are rounded to a format, "" for none: matrices only.
inline void follow(const std::vector<torch::Tensor>& parameters,
                   const std::vector<torch::Tensor>& masters,
                   const std::string& rounded) {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const bool exact = rounded.empty() || masters[p].dim() < 2;
    torch::Tensor parameter = parameters[p];
    parameter.copy_(exact ? masters[p] : arrives(rounded, masters[p]));
  }
}

// SGD on sums of `micro_batches`, a power of two, each of which arrives as `arrive` says, as does
// their sum: every product and quotient of the update is exact, but for the last subtraction.
// `rounded`: computed with weights of that format, of which exact ones are updated.
inline std::vector<float> reference_weights(const Arrive& arrive,
                                            std::int64_t micro_batches,
                                            const std::string& rounded = "") {
  OddNet model;
  std::vector<torch::Tensor> masters;
  for (const torch::Tensor& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone());
  }
  follow(model->parameters(), masters, rounded);
  for (int step = 0; step < kOddSteps; ++step) {
    const std::vector<torch::Tensor> parameters = model->parameters();
    std::vector<torch::Tensor> sums(parameters.size());
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      model->zero_grad();
      odd_loss([&](auto x, bool extra) { return model->forward(x, extra); }, step, m).backward();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (parameters[p].grad().defined()) {
          const torch::Tensor term = arrive(parameters[p].grad(), m, p);
          sums[p] = sums[p].defined() ? sums[p] + term : term;
        }
      }
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (sums[p].defined()) {
        const double scale = kOddRate / static_cast<double>(micro_batches);
        masters[p].sub_(arrive(sums[p], kSum, p) * scale);
      }
    }
    follow(parameters, masters, rounded);
  }
  return flat_weights(*model);
}

// The same by an engine.
inline std::vector<float> engine_weights(const std::shared_ptr<World>& world,
                                         const Optimizer& optimizer,
                                         const EngineOptions& options,
                                         CompressionUse* use = nullptr) {
  OddNet model;
  Engine engine(model, optimizer, options, world);
  for (int step = 0; step < kOddSteps; ++step) {
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      engine.backward(odd_loss([&](auto x, bool extra) { return engine.forward(x, extra); },
                               step,
                               engine.micro_batch(k)));
      engine.step();
    }
  }
  if (use != nullptr) {
    *use = engine.compression();
  }
  engine.unwrap();
  return flat_weights(*model);
}

// Bytes that a rank sends to each of the others, in one round and one bucket: blocks that have an
// element in the other's part of the unit, and a byte for each parameter there. Parameters begin at
// multiples of 16 floats, and parts are divided there, as evenly as possible.
inline std::vector<std::int64_t> mail_bytes(const std::vector<std::int64_t>& numels,
                                            int ranks,
                                            std::int64_t block,
                                            std::int64_t bytes,
                                            bool with_presence = true) {
  struct Element {
    std::size_t parameter;
    std::int64_t block;
  };
  std::vector<std::vector<Element>> lines;  // of 16 elements
  for (std::size_t p = 0; p < numels.size(); ++p) {
    for (std::int64_t i = 0; i < numels[p]; ++i) {
      if (i % 16 == 0) {
        lines.emplace_back();
      }
      lines.back().push_back({p, i / block});
    }
  }
  std::vector<std::int64_t> of_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    const Range part = even_range(static_cast<std::int64_t>(lines.size()), ranks, rank);
    std::set<std::pair<std::size_t, std::int64_t>> blocks;
    std::set<std::size_t> parameters;
    for (std::int64_t line = part.begin; line < part.end; ++line) {
      for (const Element& element : lines[static_cast<std::size_t>(line)]) {
        blocks.insert({element.parameter, element.block});
        parameters.insert(element.parameter);
      }
    }
    of_rank.push_back(static_cast<std::int64_t>(blocks.size()) * bytes +
                      (with_presence ? static_cast<std::int64_t>(parameters.size()) : 0));
  }
  return of_rank;
}

}  // namespace trireme::testing
