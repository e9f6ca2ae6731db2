// Losses, gradients and layers in other numbers than one: several losses of a micro-batch, one loss
// of several engines, gradients that are edited or dropped, and layers that are frozen for a
// while. What is expected is computed with LibTorch alone.

#include <cmath>
#include <new>

#include <gtest/gtest.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "parallel/engine_worlds.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::engine_losses_test {
namespace {

namespace nn = torch::nn;
using engine_worlds::contains;
using testing::fork_ranks;
using testing::message_of;
using torch::Tensor;

constexpr int kMicroBatches = 4;  // of a step
constexpr int kSteps = 3;

// body(world, options) for every stage, on 1, 2 and 3 ranks.
void everywhere(const std::function<void(std::shared_ptr<World>, const EngineOptions&)>& body) {
  engine_worlds::everywhere(kMicroBatches, body);
}

struct TwoHeadsImpl : nn::Module {
  nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
  TwoHeadsImpl() {
    torch::manual_seed(3);
    trunk = register_module("trunk", nn::Linear(6, 5));
    left = register_module("left", nn::Linear(5, 3));
    right = register_module("right", nn::Linear(5, 1));
  }
  Tensor features(const Tensor& x) { return torch::tanh(trunk->forward(x)); }
  Tensor forward(const Tensor& x) {
    return left->forward(features(x)).pow(2).mean() + right->forward(features(x)).pow(2).mean();
  }
};
TORCH_MODULE(TwoHeads);

Tensor input_of(std::int64_t step, std::int64_t micro_batch) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + micro_batch));
  return torch::randn({4, 6});
}

// What `backward` leaves in .grad for each micro-batch of a step, in the mean.
void plain_gradients(nn::Module& model,
                     const std::function<void(std::int64_t)>& backward,
                     std::int64_t count = kMicroBatches) {
  std::vector<Tensor> sums;
  for (std::int64_t m = 0; m < count; ++m) {
    for (auto& parameter : model.parameters()) {
      parameter.mutable_grad().reset();
    }
    backward(m);
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor gradient = parameters[i].grad();
      if (m == 0) {
        sums.push_back(gradient.defined() ? gradient.clone() : Tensor());
      } else if (gradient.defined()) {
        sums[i] = sums[i].defined() ? sums[i] + gradient : gradient.clone();
      }
    }
  }
  const auto parameters = model.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = sums[i].defined() ? sums[i] / count : Tensor();
  }
}

template <class Model>
void expect_weights(Engine<Model>& engine, nn::Module& expected) {
  const auto scope = engine.gathered();
  const auto found = engine.model().named_parameters();
  for (const auto& parameter : expected.named_parameters()) {
    EXPECT_TRUE(torch::allclose(*found.find(parameter.key()), parameter.value(), 1e-5, 1e-7))
        << parameter.key();
  }
}

TEST(Losses, OfOneMicroBatchMayBeSeveral) {
  TwoHeads plain;
  torch::optim::SGD optimizer(plain->parameters(), 0.125);
  const auto weight_of = [](const Tensor& output) { return torch::full_like(output, 0.5); };
  for (int step = 0; step < kSteps; ++step) {
    plain_gradients(*plain, [&](std::int64_t m) {
      const Tensor features = plain->features(input_of(step, m));
      plain->left->forward(features).pow(2).mean().backward({}, /*retain_graph=*/true);
      if (m % 2 == 1) {  // not in every micro-batch: the right head has no gradient there
        const Tensor output = plain->right->forward(features);
        output.backward(weight_of(output), /*retain_graph=*/true);
      }
      features.pow(2).mean().backward();
    });
    optimizer.step();
  }
  everywhere([&](std::shared_ptr<World> world, const EngineOptions& options) {
    TwoHeads model;
    Engine engine(model, Sgd({.lr = 0.125}), options, world);
    for (int step = 0; step < kSteps; ++step) {
      for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
        const std::int64_t m = engine.micro_batch(k);
        const Tensor features = model->features(input_of(step, m));
        engine.backward(model->left->forward(features).pow(2).mean(),
                        {.more = true, .retain_graph = true});
        if (m % 2 == 1) {
          const Tensor output = model->right->forward(features);
          engine.backward(output,
                          {.more = true, .retain_graph = true, .gradient = weight_of(output)});
        }
        const std::string early = message_of<ConfigError>([&] { engine.step(); });
        EXPECT_TRUE(contains(early, "BackwardOptions::more")) << early;
        engine.backward(features.pow(2).mean());
        EXPECT_EQ(engine.step(), k + 1 == engine.local_micro_batches());
      }
    }
    expect_weights(engine, *plain);
  });
}

// A buffer for gradients may be used again, and what was frozen after forward gets none.
TEST(Losses, LeaveWhatLibTorchLeaves) {
  const auto passes = [](TwoHeads& model, const auto& backward, bool frozen) {
    // Of one sample, so that the gradient of the bias is that of the output: the very tensor.
    const Tensor output = model->right->forward(model->features(input_of(0, 0)[0]));
    model->right->bias.requires_grad_(!frozen);
    Tensor gradient = torch::ones({1});
    backward(output, gradient, true);
    gradient.fill_(100);
    backward(output.pow(2), torch::ones({1}), false);
    model->right->bias.requires_grad_(true);
  };
  for (const bool frozen : {false, true}) {
    TwoHeads plain;
    torch::optim::SGD optimizer(plain->parameters(), 0.125);
    const auto run = [](const Tensor& output, const Tensor& gradient, bool more) {
      output.backward(gradient, /*retain_graph=*/more);
    };
    passes(plain, run, frozen);
    optimizer.step();
    everywhere([&](std::shared_ptr<World> world, EngineOptions options) {
      options.micro_batches = world->size();
      TwoHeads model;
      Engine engine(model, Sgd({.lr = 0.125}), options, world);
      const auto on_engine = [&](const Tensor& output, const Tensor& gradient, bool more) {
        engine.backward(output, {.more = more, .retain_graph = more, .gradient = gradient});
      };
      passes(model, on_engine, frozen);
      engine.step();
      expect_weights(engine, *plain);
    });
  }
}

TEST(Losses, OfAMicroBatchCanBeGivenUp) {
  everywhere([](std::shared_ptr<World> world, const EngineOptions& options) {
    TwoHeads model;
    Engine engine(model, Sgd({.lr = 0.125}), options, world);
    for (int step = 0; step < 3; ++step) {
      bool again = true;
      while (again) {
        again = false;
        try {
          for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
            const Tensor loss = engine.forward(input_of(step, engine.micro_batch(k)));
            if (step == 1 && engine.micro_batch(k) == kMicroBatches - 1 &&
                engine.gradient_norm() != 1) {
              const Tensor bad = loss * 1;
              bad.register_hook([](const Tensor&) -> Tensor { throw std::bad_alloc(); });
              EXPECT_THROW(engine.backward(bad, {.more = true}), std::bad_alloc);
              engine.give_up("no memory");
            }
            engine.backward(loss * 0.5, {.more = true, .retain_graph = true});
            engine.backward(loss * 0.5);
            engine.step();
          }
        } catch (const StepGivenUp&) {
          return;  // all of them, once
        }
      }
    }
    ADD_FAILURE() << "nobody has given up";
  });
}

TEST(Losses, OfSeveralEnginesMayBeOne) {
  TwoHeads actor;
  nn::Linear critic(3, 1);
  const auto initial = critic->weight.detach().clone();
  const auto initial_bias = critic->bias.detach().clone();
  const auto make_critic = [&] {
    nn::Linear made(3, 1);
    torch::NoGradGuard no_grad;
    made->weight.copy_(initial);
    made->bias.copy_(initial_bias);
    return made;
  };
  torch::optim::Adam a(actor->parameters(), 0.01);
  torch::optim::SGD c(critic->parameters(), 0.125);
  const auto loss_of = [](TwoHeads& one, nn::Linear& other, const Tensor& x) {
    const Tensor output = one->left->forward(one->features(x));
    return other->forward(output).pow(2).mean() + one->right->forward(one->features(x)).mean();
  };
  for (int step = 0; step < kSteps; ++step) {
    nn::Module both;
    both.register_module("actor", actor.ptr());
    both.register_module("critic", critic.ptr());
    plain_gradients(
        both, [&](std::int64_t m) { loss_of(actor, critic, input_of(step, m)).backward(); }, 6);
    a.step();
    c.step();
  }
  everywhere([&](std::shared_ptr<World> world, EngineOptions options) {
    options.micro_batches = 6;
    options.bucket_bytes = 64;  // many, and few places for them
    options.bucket_count = 2;
    TwoHeads actor_model;
    nn::Linear critic_model = make_critic();
    Engine one(actor_model, Adam({.lr = 0.01}), options, world);
    Engine other(critic_model, Sgd({.lr = 0.125}), options, world->split(0, world->rank()));
    for (int step = 0; step < kSteps; ++step) {
      for (std::int64_t k = 0; k < one.local_micro_batches(); ++k) {
        backward(loss_of(actor_model, critic_model, input_of(step, one.micro_batch(k))),
                 {&one, &other});
        one.step();
        other.step();
      }
    }
    EXPECT_EQ(other.steps(), kSteps);
    expect_weights(one, *actor);
    expect_weights(other, *critic);
    EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                           backward(torch::zeros({}, torch::requires_grad()), {&one, &one});
                         }),
                         "the same engine twice"));
    if (world->size() > 1) {
      options.micro_batches = 7;
      nn::Linear uneven(3, 1);
      Engine more(uneven, Sgd({.lr = 0.125}), options, world->split(0, world->rank()));
      EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                             backward(torch::zeros({}, torch::requires_grad()), {&one, &more});
                           }),
                           "as many micro-batches on every rank"));
      nn::Linear third(3, 1);
      Engine neighbour(third, Sgd({.lr = 0.125}), options, world);
      EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                             backward(torch::zeros({}, torch::requires_grad()), {&one, &neighbour});
                           }),
                           "world->split(0, world->rank())"));
    }
  });
}

TEST(Gradients, MayBeEditedBeforeTheUpdate) {
  TwoHeads plain;
  torch::optim::SGD optimizer(plain->parameters(), 0.125);
  const auto edited = [](const Tensor& gradient) { return gradient.sign() * 0.25; };
  for (int step = 0; step < kSteps; ++step) {
    plain_gradients(*plain, [&](std::int64_t m) { plain->forward(input_of(step, m)).backward(); });
    plain->trunk->weight.mutable_grad() = edited(plain->trunk->weight.grad());
    plain->right->bias.mutable_grad() = torch::full({1}, 2.0);
    nn::utils::clip_grad_norm_(plain->parameters(), 1.0);
    optimizer.step();
  }
  everywhere([&](std::shared_ptr<World> world, const EngineOptions& options) {
    TwoHeads model;
    Engine engine(model, Sgd({.lr = 0.125}), options, world);
    for (int step = 0; step < kSteps; ++step) {
      for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
        engine.backward(engine.forward(input_of(step, engine.micro_batch(k))));
        if (k + 1 < engine.local_micro_batches()) {
          engine.step();
        }
      }
      engine.set_grad("trunk.weight", edited(engine.grad("trunk.weight")));
      // Only rank 0's counts.
      engine.set_grad("right.bias", torch::full({1}, world->rank() == 0 ? 2.0 : 7.0));
      EXPECT_EQ(engine.grad("right.bias").item<float>(), 2);
      EXPECT_TRUE(contains(
          message_of<ConfigError>([&] { engine.set_grad("right.bias", torch::zeros({2})); }),
          "other sizes"));
      EXPECT_TRUE(contains(message_of<ConfigError>(
                               [&] { engine.set_grad("right.bias", torch::full({1}, INFINITY)); }),
                           "not finite"));
      engine.clip_grad_norm(1.0);
      EXPECT_TRUE(contains(
          message_of<ConfigError>([&] { engine.set_grad("right.bias", torch::zeros({1})); }),
          "clipped already"));
      EXPECT_TRUE(engine.step());
    }
    expect_weights(engine, *plain);
  });
}

// A rank that has joined follows a step whose edits are refused.
TEST(Gradients, MayBeEditedWhileOthersHaveJoined) {
  everywhere([](std::shared_ptr<World> world, EngineOptions options) {
    options.micro_batches = world->size();
    TwoHeads model;
    Engine engine(model, Sgd({.lr = 1}), options, world);
    const float before = model->right->bias.item<float>();
    if (world->rank() == world->size() - 1) {
      engine.backward(engine.forward(input_of(0, 0)));
      EXPECT_TRUE(contains(
          message_of<ConfigError>([&] { engine.set_grad("right.bias", torch::zeros({2})); }),
          "other sizes"));
      EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                             engine.set_grad("right.bias", torch::full({1}, 1e300, torch::kDouble));
                           }),
                           "too large for float32"));
      engine.set_grad("right.bias", torch::full({1}, 0.5));
      EXPECT_TRUE(engine.step());
      engine.backward(engine.forward(input_of(0, 0)));
      engine.drop();
    }
    engine.join();
    EXPECT_EQ(model->right->bias.item<float>(), before - 0.5F);
    EXPECT_EQ(engine.steps(), 1);
  });
}

struct NormedImpl : nn::Module {
  nn::BatchNorm1d norm{nullptr};
  NormedImpl() { norm = register_module("norm", nn::BatchNorm1d(6)); }
  Tensor forward(const Tensor& x) { return norm->forward(x).pow(3).mean(); }
};
TORCH_MODULE(Normed);

TEST(Gradients, ThatAreDroppedLeaveReplicasAlike) {
  everywhere([](std::shared_ptr<World> world, EngineOptions options) {
    options.micro_batches = world->size();
    options.broadcast_buffers = true;
    Normed model;
    Engine engine(model, Sgd({.lr = 0.125}), options, world);
    engine.backward(engine.forward(input_of(0, world->rank())));
    engine.drop();
    engine.check_replicas();
  });
}

TEST(Gradients, OfAStepMayBeDropped) {
  everywhere([](std::shared_ptr<World> world, const EngineOptions& options) {
    TwoHeads kept, model;
    Engine expected(kept, AdamW({.lr = 0.01}), options, world);
    Engine engine(model, AdamW({.lr = 0.01}), options, world);
    const auto step = [](auto& of, int number) {
      for (std::int64_t k = 0; k < of.local_micro_batches(); ++k) {
        of.backward(of.forward(input_of(number, of.micro_batch(k))));
        of.step();
      }
    };
    step(expected, 0);
    step(expected, 1);
    step(engine, 0);
    if (engine.local_micro_batches() > 1) {  // between micro-batches, on some ranks
      engine.backward(engine.forward(input_of(8, 0)));
      engine.step();
    }
    engine.drop();
    engine.backward(engine.forward(input_of(9, 0)), {.more = true});  // between losses
    engine.drop();
    EXPECT_EQ(engine.steps(), 1);
    step(engine, 1);
    EXPECT_EQ(engine.steps(), 2);
    const auto one = expected.gathered();
    const auto other = engine.gathered();
    const auto found = model->named_parameters();
    for (const auto& parameter : kept->named_parameters()) {
      EXPECT_TRUE(torch::equal(*found.find(parameter.key()), parameter.value())) << parameter.key();
    }
  });
}

// As with LibTorch's optimizers, whose states of parameters without gradients stay.
TEST(Layers, MayBeFrozenForAWhile) {
  const auto freeze = [](nn::Module& layer, int step) {
    for (auto& parameter : layer.parameters()) {
      parameter.requires_grad_(step != 1);
    }
  };
  TwoHeads plain;
  torch::optim::Adam optimizer(plain->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    freeze(*plain->trunk, step);
    plain_gradients(*plain, [&](std::int64_t m) { plain->forward(input_of(step, m)).backward(); });
    optimizer.step();
  }
  everywhere([&](std::shared_ptr<World> world, const EngineOptions& options) {
    TwoHeads model;
    Engine engine(model, Adam({.lr = 0.01}), options, world);
    for (int step = 0; step < kSteps; ++step) {
      freeze(*model->trunk, step);
      EXPECT_TRUE(engine.frozen().empty()) << "none was when it was built";
      for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
        engine.backward(engine.forward(input_of(step, engine.micro_batch(k))));
        engine.step();
      }
    }
    expect_weights(engine, *plain);
  });
}

TEST(Replicas, AreComparedOnRequest) {
  fork_ranks(3, [job = testing::unique_job()](int rank) {
    const auto world = init(testing::options_for(job, rank, 3));
    TwoHeads model;
    Engine engine(model, Sgd({.lr = 0.1}), {}, world);
    engine.check_replicas();
    if (rank == 2) {  // past the engine, as a stray pointer would
      const_cast<float*>(model->left->weight.const_data_ptr<float>())[4] += 1;
    }
    const std::string message = message_of<ConfigError>([&] { engine.check_replicas(); });
    EXPECT_TRUE(contains(message, "left.weight")) << message;
    EXPECT_TRUE(contains(message, "rank 2")) << message;
  });
}

}  // namespace
}  // namespace trireme::engine_losses_test
