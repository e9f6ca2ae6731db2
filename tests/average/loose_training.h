#pragma once

// Replicas that train on their own and are averaged now and then: with engines, and by plain
// LibTorch in one process, which is what they are compared with. Learning rate and momentum are
// powers of two, so that there is one right answer.

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/average/averaging.h"

namespace trireme::testing {

struct LooseNetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor kept;  // never trained: a third of it is not a third of what three ranks have

  explicit LooseNetImpl(std::uint64_t seed = 5) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(7, 13));
    second = register_module("second", torch::nn::Linear(13, 3));
    kept = register_parameter("kept", torch::randn({11}), /*requires_grad=*/false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second->forward(torch::tanh(first->forward(x.to(first->weight.dtype()))));
  }
};
TORCH_MODULE(LooseNet);

struct LooseCase {
  int replicas = 2;
  int ranks = 1;  // of each replica
  int steps = 8;
  std::int64_t every = 3;
  double momentum = 0.5;
  bool states = false;
  std::vector<AveragingOptions::Change> schedule{};
};

inline constexpr double kLooseRate = 0.125;
inline constexpr std::int64_t kLooseMicroBatches = 2;  // of a replica's step

template <class Forward>
torch::Tensor loose_loss(const Forward& forward, int replica, int step, std::int64_t micro_batch) {
  auto generator = at::detail::createCPUGenerator(
      static_cast<std::uint64_t>(1000 * replica + 10 * step + micro_batch));
  const torch::Tensor x = torch::randn({5, 7}, generator, torch::kFloat);
  return (forward(x) - 0.5).pow(2).mean();
}

inline std::vector<float> flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<float> all;
  for (const torch::Tensor& tensor : tensors) {
    const torch::Tensor values = tensor.detach().to(torch::kFloat).contiguous();
    const auto* data = static_cast<const float*>(values.const_data_ptr());
    all.insert(all.end(), data, data + values.numel());
  }
  return all;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The mean of replicas, in float64, rounded once.
inline torch::Tensor mean_of(const std::vector<torch::Tensor>& tensors) {
  torch::Tensor sum = torch::zeros_like(tensors[0], torch::kDouble);
  for (const torch::Tensor& tensor : tensors) {
    sum += tensor.to(torch::kDouble);
  }
  return (sum / static_cast<double>(tensors.size())).to(torch::kFloat);
}

// By LibTorch: N models, each with SGD of its own, and after every few steps `together` with the
// tensors that all of them have of one parameter. Returns each replica's weights.
inline std::vector<std::vector<float>> reference_weights(
    const LooseCase& c,
    const std::function<void(std::size_t parameter, std::vector<torch::Tensor>& all)>& together) {
  std::vector<LooseNet> models;
  std::vector<std::vector<torch::Tensor>> momenta;
  for (int replica = 0; replica < c.replicas; ++replica) {
    models.emplace_back(LooseNet());
    momenta.emplace_back();
    for (const torch::Tensor& parameter : models.back()->parameters()) {
      momenta.back().push_back(torch::zeros_like(parameter));
    }
  }
  const torch::NoGradGuard no_grad;
  std::int64_t since = 0;
  for (int step = 0; step < c.steps; ++step) {
    for (int replica = 0; replica < c.replicas; ++replica) {
      LooseNet& model = models[static_cast<std::size_t>(replica)];
      for (std::int64_t m = 0; m < kLooseMicroBatches; ++m) {
        const torch::AutoGradMode grad(true);
        loose_loss([&](const torch::Tensor& x) { return model->forward(x); }, replica, step, m)
            .backward();
      }
      const auto parameters = model->parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (!parameters[p].requires_grad()) {
          continue;
        }
        torch::Tensor& momentum = momenta[static_cast<std::size_t>(replica)][p];
        momentum.mul_(c.momentum).add_(parameters[p].grad() / kLooseMicroBatches);
        torch::Tensor weights = parameters[p];
        weights.sub_(momentum * kLooseRate);
        weights.mutable_grad().reset();
      }
    }
    std::int64_t every = c.every;
    for (const auto& change : c.schedule) {
      every = step >= change.from ? change.steps : every;
    }
    if (++since < every) {
      continue;
    }
    since = 0;
    for (std::size_t p = 0; p < models[0]->parameters().size(); ++p) {
      std::vector<torch::Tensor> weights;
      std::vector<torch::Tensor> states;
      for (std::size_t replica = 0; replica < models.size(); ++replica) {
        weights.push_back(models[replica]->parameters()[p]);
        states.push_back(momenta[replica][p]);
      }
      if (!weights[0].requires_grad()) {
        continue;
      }
      together(p, weights);
      if (c.states) {
        const torch::Tensor mean = mean_of(states);
        for (torch::Tensor& state : states) {
          state.copy_(mean);
        }
      }
    }
  }
  std::vector<std::vector<float>> all;
  for (LooseNet& model : models) {
    all.push_back(flat(model->parameters()));
  }
  return all;
}

inline std::vector<std::vector<float>> local_reference(const LooseCase& c) {
  return reference_weights(c, [](std::size_t, std::vector<torch::Tensor>& all) {
    const torch::Tensor mean = mean_of(all);
    for (torch::Tensor& weights : all) {
      weights.copy_(mean);
    }
  });
}

// A replica's model, engine and averaging, on each rank.
struct LooseReplica {
  LooseReplica(const std::shared_ptr<World>& world,
               const LooseCase& c,
               const Averaging::Mode& mode,
               EngineOptions options = {},
               const Optimizer* optimizer = nullptr)
      : replicas(world, {.ranks = c.ranks}),
        model(static_cast<std::uint64_t>(5 + replicas.number())),  // replica 0's become everyone's
        engine(
            model,
            *(optimizer != nullptr ? optimizer->clone()
                                   : Sgd({.lr = kLooseRate, .momentum = c.momentum}).clone()),
            [&] {
              options.micro_batches = kLooseMicroBatches;
              return options;
            }(),
            replicas.mine()),
        averaging(engine, replicas, mode, {.states = c.states, .schedule = c.schedule}) {}

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      bool done = false;
      for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
        engine.backward(loose_loss([&](const torch::Tensor& x) { return engine.forward(x); },
                                   replicas.number(),
                                   step,
                                   engine.micro_batch(k)));
        done = engine.step();
      }
      ASSERT_TRUE(done);
      averaging.step();
    }
  }
  std::vector<float> weights() {
    auto scope = engine.gathered();
    std::vector<float> all = flat(model->parameters());
    scope.close();
    return all;
  }

  Replicas replicas;
  LooseNet model;
  Engine<LooseNetImpl> engine;
  Averaging averaging;
};

inline void in_loose_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  fork_ranks(size, [&, job = unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(options_for(job, rank, size)));
  });
}

}  // namespace trireme::testing
