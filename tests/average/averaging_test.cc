// Averaged replicas against plain LibTorch and against formulas.

#include "trireme/average/averaging.h"

#include <cmath>

#include <gtest/gtest.h>

#include "average/loose_training.h"
#include "trireme/core/error.h"

namespace trireme::averaging_test {
namespace {

using testing::in_loose_world;
using testing::LooseCase;
using testing::LooseReplica;
using testing::message_of;
using testing::same_bits;

std::vector<float> trained(const std::shared_ptr<World>& world,
                           const LooseCase& c,
                           const Averaging::Mode& mode,
                           const EngineOptions& options = {}) {
  LooseReplica replica(world, c, mode, options);
  replica.train(0, c.steps);
  return replica.weights();
}

std::size_t number(const std::shared_ptr<World>& world, const LooseCase& c) {
  return static_cast<std::size_t>(world->rank() / c.ranks);
}

// Also where the last steps are on their own, and where replicas have two ranks at every stage.
TEST(Averaging, LocalIsAPlainLoopOfModels) {
  for (const LooseCase& c : {LooseCase{.replicas = 1},
                             LooseCase{.replicas = 3},
                             LooseCase{.replicas = 3, .every = 1, .states = true},
                             LooseCase{.replicas = 2, .ranks = 2, .every = 2, .states = true},
                             LooseCase{.replicas = 2, .ranks = 2, .every = 4}}) {
    const auto expected = testing::local_reference(c);
    in_loose_world(c.replicas * c.ranks, [&](const std::shared_ptr<World>& world) {
      for (int zero = 0; zero <= (c.ranks > 1 ? 3 : 0); ++zero) {
        SCOPED_TRACE("stage " + std::to_string(zero));
        EXPECT_TRUE(same_bits(trained(world, c, Local{.steps = c.every}, {.zero = zero}),
                              expected[number(world, c)]));
      }
    });
  }
}

TEST(Averaging, FollowsItsSchedule) {
  LooseCase c{.replicas = 2, .steps = 9, .schedule = {{0, 1}, {3, 4}, {8, 1}}};
  const auto expected = testing::local_reference(c);
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    LooseReplica replica(world, c, Local{.steps = 100});
    std::vector<int> averaged;
    for (int step = 0; step < c.steps; ++step) {
      replica.train(step, step + 1);
      averaged.push_back(static_cast<int>(replica.averaging.use().averagings));
    }
    EXPECT_EQ(averaged, (std::vector<int>{1, 2, 3, 3, 3, 3, 4, 4, 5}));
    EXPECT_TRUE(same_bits(replica.weights(), expected[number(world, c)]));
    // Each sends half of its weights to the other, and then half of the means.
    const std::int64_t numel = 7 * 13 + 13 + 13 * 3 + 3;
    EXPECT_NEAR(static_cast<double>(replica.averaging.use().sent_bytes),
                static_cast<double>(5 * 4 * numel),
                5 * 8);
  });
}

// What has masters, moving averages and other moments: the stages agree.
TEST(Averaging, HasTheSameBitsAtEveryStage) {
  const LooseCase c{.replicas = 2, .ranks = 2, .steps = 5, .every = 2, .states = true};
  in_loose_world(4, [&](const std::shared_ptr<World>& world) {
    const AdamW adam({.lr = 1e-2});
    for (const Averaging::Mode& mode :
         {Averaging::Mode(DiLoCo{.steps = 2}), Averaging::Mode(Gossip{.steps = 2})}) {
      std::vector<float> first;
      for (int zero = 0; zero <= 3; ++zero) {
        LooseReplica replica(world,
                             c,
                             mode,
                             {.zero = zero, .ema_decay = 0.5, .precision = Precision::kBFloat16},
                             &adam);
        replica.train(0, c.steps);
        std::vector<float> found = replica.weights();
        for (const char* name : {"first.weight", "second.bias"}) {
          const auto average = testing::flat({replica.engine.average(name)});
          found.insert(found.end(), average.begin(), average.end());
        }
        first = zero == 0 ? found : first;
        EXPECT_TRUE(same_bits(found, first)) << "stage " << zero << ", mode " << mode.index();
      }
    }
  });
}

// Every number is a small multiple of a power of two, and so nothing is rounded.
TEST(Averaging, EveryStepWithSgdIsSynchronous) {
  constexpr int kReplicas = 4;
  const auto batch = [](int replica, int step) {
    torch::Tensor x = torch::zeros({2, 3});
    for (int i = 0; i < 6; ++i) {
      x[i / 3][i % 3] = (replica * 7 + step * 5 + i * 3) % 5 - 2;
    }
    return x;
  };
  const auto loss = [](const torch::Tensor& y) { return (y - 0.5).pow(2).mean(); };
  const auto net = [] {
    torch::nn::Linear linear(3, 1);
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(torch::tensor({0.5, -1.0, 0.25}).reshape({1, 3}));
    linear->bias.fill_(0.125);
    return linear;
  };
  torch::nn::Linear one = net();
  for (int step = 0; step < 3; ++step) {
    torch::Tensor sum;
    for (int replica = 0; replica < kReplicas; ++replica) {
      const torch::Tensor each = loss(one->forward(batch(replica, step)));
      sum = sum.defined() ? sum + each : each;
    }
    (sum / kReplicas).backward();
    const torch::NoGradGuard no_grad;
    for (torch::Tensor parameter : one->parameters()) {
      parameter.sub_(parameter.grad() * 0.125);
      parameter.mutable_grad().reset();
    }
  }
  in_loose_world(kReplicas, [&](const std::shared_ptr<World>& world) {
    Replicas replicas(world);
    torch::nn::Linear linear = net();
    Engine engine(linear, Sgd({.lr = 0.125}), {}, replicas.mine());
    Averaging averaging(engine, replicas, Local{.steps = 1});
    for (int step = 0; step < 3; ++step) {
      engine.backward(loss(engine.forward(batch(world->rank(), step))));
      ASSERT_TRUE(engine.step());
      EXPECT_TRUE(averaging.step());
    }
    EXPECT_TRUE(same_bits(testing::flat(linear->parameters()), testing::flat(one->parameters())));
  });
}

TEST(Averaging, DiLoCoIsTheFormulaInFloat64) {
  for (const DiLoCo::Outer outer :
       {DiLoCo::Outer{}, DiLoCo::Outer{.lr = 0.5, .momentum = 0.8, .nesterov = false}}) {
    const LooseCase c{.replicas = 2, .ranks = 2, .steps = 8, .every = 2};
    std::vector<torch::Tensor> weights, momenta;
    for (const torch::Tensor& parameter : testing::LooseNet()->parameters()) {
      weights.push_back(parameter.detach().to(torch::kDouble));
      momenta.push_back(torch::zeros_like(weights.back()));
    }
    const auto expected =
        testing::reference_weights(c, [&](std::size_t p, std::vector<torch::Tensor>& all) {
          torch::Tensor mean = torch::zeros_like(weights[p]);
          for (const torch::Tensor& each : all) {
            mean += each.to(torch::kDouble) / static_cast<double>(all.size());
          }
          const torch::Tensor gradient = weights[p] - mean;
          momenta[p] = outer.momentum * momenta[p] + gradient;
          const torch::Tensor direction =
              outer.nesterov ? gradient + outer.momentum * momenta[p] : momenta[p];
          weights[p] = weights[p] - outer.lr * direction;
          for (torch::Tensor& each : all) {
            each.copy_(weights[p]);
          }
        });
    const auto local = testing::local_reference(c);
    in_loose_world(4, [&](const std::shared_ptr<World>& world) {
      for (const int zero : {0, 2}) {
        const auto found = trained(world, c, DiLoCo{.steps = 2, .outer = outer}, {.zero = zero});
        ASSERT_EQ(found.size(), expected[0].size());
        double moved = 0;
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_NEAR(found[i], expected[0][i], 1e-6) << i;
          moved = std::max<double>(moved, std::abs(found[i] - local[0][i]));
        }
        EXPECT_GT(moved, 1e-3);  // not what averaging alone would give
      }
    });
  }
}

TEST(Averaging, DiLoCoWithoutMomentumAndWithRateOneIsLocal) {
  const LooseCase c{.replicas = 3, .steps = 6, .every = 2};
  const auto expected = testing::local_reference(c);
  in_loose_world(3, [&](const std::shared_ptr<World>& world) {
    EXPECT_TRUE(same_bits(trained(world, c, DiLoCo{.steps = 2, .outer = {.lr = 1, .momentum = 0}}),
                          expected[number(world, c)]));
  });
}

// Sets a replica's only weights, and reads them.
struct Values {
  explicit Values(const std::shared_ptr<World>& world, const Gossip& gossip)
      : replicas(world),
        engine(linear, Sgd({.lr = 1}), {}, replicas.mine()),
        averaging(engine, replicas, gossip) {}
  void set(double value) {
    auto scope = engine.gathered();
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(value);
  }
  double get() { return linear->weight[0][0].item<double>(); }
  // Of all replicas.
  std::vector<double> all() {
    std::vector<double> mine = {get()};
    std::vector<double> values(static_cast<std::size_t>(replicas.count()));
    replicas.world().all_gather(mine, values).wait();
    return values;
  }

  Replicas replicas;
  torch::nn::Linear linear{torch::nn::LinearOptions(1, 1).bias(false)};
  Engine<torch::nn::LinearImpl> engine;
  Averaging averaging;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return sum / static_cast<double>(values.size());
}

double spread(const std::vector<double>& values) {
  return std::ranges::max(values) - std::ranges::min(values);
}

// cos(2 pi i / N) is an eigenvector of the ring's matrix, whose eigenvalue is the formula.
TEST(Averaging, GossipInARingContractsAsTheFormulaSays) {
  in_loose_world(5, [](const std::shared_ptr<World>& world) {
    const double angle = 2 * M_PI / world->size();
    Values values(world, {.graph = Gossip::Graph::kRing});
    values.set(std::cos(angle * world->rank()));
    double expected = std::cos(angle * world->rank());
    for (int round = 0; round < 6; ++round) {
      values.averaging.average();
      expected *= (1 + 2 * std::cos(angle)) / 3;
      EXPECT_NEAR(values.get(), expected, 1e-6) << round;
    }
  });
}

TEST(Averaging, GossipKeepsTheMean) {
  for (const int replicas : {2, 4, 5}) {
    in_loose_world(replicas, [](const std::shared_ptr<World>& world) {
      const int size = world->size();
      for (const auto graph :
           {Gossip::Graph::kRing, Gossip::Graph::kExponential, Gossip::Graph::kRandom}) {
        Values values(world, {.graph = graph, .seed = 3});
        values.set(world->rank() * world->rank() - 1.5);
        const std::vector<double> before = values.all();
        for (int round = 1; round <= 40; ++round) {
          values.averaging.average();
          const std::vector<double> now = values.all();
          EXPECT_NEAR(mean(now), mean(before), 1e-5) << "graph " << static_cast<int>(graph);
          if (graph == Gossip::Graph::kExponential && size == 4 && round == 2) {
            EXPECT_EQ(spread(now), 0);  // powers of two are done after log2 of them
          }
        }
        EXPECT_LT(spread(values.all()), 1e-3 * spread(before)) << static_cast<int>(graph);
        EXPECT_EQ(values.averaging.use().averagings, 40);
      }
    });
  }
}

TEST(Averaging, GossipsWithThoseThatTheSeedDraws) {
  in_loose_world(5, [](const std::shared_ptr<World>& world) {
    const auto after = [&](std::uint64_t seed) {
      Values values(world, {.graph = Gossip::Graph::kRandom, .seed = seed});
      values.set(world->rank());
      values.averaging.average();
      return values.all();
    };
    const std::vector<double> first = after(0);
    EXPECT_EQ(after(0), first);
    bool other = false;
    for (std::uint64_t seed = 1; seed < 6; ++seed) {
      other |= after(seed) != first;
    }
    EXPECT_TRUE(other);
    // Two pairs, and one alone.
    int alone = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      alone += first[i] == static_cast<double>(i) ? 1 : 0;
    }
    EXPECT_LE(alone, 3);
    EXPECT_NE(alone, 5);
  });
}

// A mean is ((-0 + a) + b) / 2, and a weight that nothing has moved stays what it is.
TEST(Averaging, KeepsTheSignOfZero) {
  const float pairs[][2] = {{-0.0F, -0.0F}, {-0.0F, 0.0F}, {0.0F, 0.0F}, {0.5F, -0.5F}};
  const std::vector<Averaging::Mode> modes = {Local{},
                                              Gossip{},
                                              DiLoCo{.outer = {.lr = 1, .momentum = 0}},
                                              DiLoCo{.outer = {.lr = 0.5, .momentum = 0.5}}};
  in_loose_world(2, [&](const std::shared_ptr<World>& world) {
    const auto rank = static_cast<std::size_t>(world->rank());
    for (const Averaging::Mode& mode : modes) {
      for (const auto& pair : pairs) {
        Replicas replicas(world);
        torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
        const torch::NoGradGuard no_grad;
        linear->weight.fill_(pair[0]);  // DiLoCo's own, which the replicas begin with
        Engine engine(linear, Sgd({.lr = 1}), {}, replicas.mine());
        Averaging averaging(engine, replicas, mode);
        {
          auto scope = engine.gathered();
          linear->weight.fill_(pair[rank]);
        }
        averaging.average();
        const double sum = static_cast<double>(pair[0]) + static_cast<double>(pair[1]);
        double expected = sum / 2;
        if (const auto* diloco = std::get_if<DiLoCo>(&mode)) {
          const double weight = pair[0];
          const double gradient = weight - expected;
          const double direction = gradient + diloco->outer.momentum * gradient;  // Nesterov's
          expected = diloco->outer.momentum == 0 ? expected : weight - 0.5 * direction;
        }
        const auto found = linear->weight.item<float>();
        EXPECT_EQ(found, static_cast<float>(expected));
        EXPECT_EQ(std::signbit(found), std::signbit(expected))
            << mode.index() << ": " << pair[0] << " and " << pair[1];
      }
    }
  });
}

// Statistics follow each replica's own data until they are averaged.
TEST(Averaging, AveragesBuffersWithTheWeights) {
  in_loose_world(3, [](const std::shared_ptr<World>& world) {
    Replicas replicas(world);
    torch::nn::BatchNorm1d norm(2);
    Engine engine(norm, Sgd({.lr = 0.125}), {}, replicas.mine());
    Averaging averaging(engine, replicas, Local{.steps = 2});
    std::vector<torch::nn::BatchNorm1d> plain = {
        torch::nn::BatchNorm1d(2), torch::nn::BatchNorm1d(2), torch::nn::BatchNorm1d(2)};
    const auto own = static_cast<std::size_t>(world->rank());
    for (int step = 0; step < 2; ++step) {
      for (std::size_t replica = 0; replica < 3; ++replica) {
        auto generator = at::detail::createCPUGenerator(10 * replica + static_cast<unsigned>(step));
        const torch::Tensor x = torch::randn({4, 2}, generator, torch::kFloat) + 1;
        plain[replica]->forward(x);
        if (replica == own) {
          engine.backward(engine.forward(x).pow(2).mean());
        }
      }
      ASSERT_TRUE(engine.step());
      EXPECT_EQ(testing::flat({norm->running_mean}) == testing::flat({plain[own]->running_mean}),
                true);
      averaging.step();
    }
    const torch::Tensor expected =
        testing::mean_of({plain[0]->running_var, plain[1]->running_var, plain[2]->running_var});
    EXPECT_TRUE(same_bits(testing::flat({norm->running_var}), testing::flat({expected})));
    EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 2);
  });
}

// Evaluation sees what all have learned, and training goes on as if it had not been.
TEST(Averaging, LendsTheMean) {
  const LooseCase c{.replicas = 3, .steps = 5, .every = 3};
  const auto apart = testing::local_reference(c);
  const auto expected = [&] {
    std::vector<torch::Tensor> all;
    for (const std::vector<float>& each : apart) {
      all.push_back(torch::tensor(each));
    }
    return testing::flat({testing::mean_of(all)});
  }();
  in_loose_world(3, [&](const std::shared_ptr<World>& world) {
    LooseReplica replica(world, c, Local{.steps = 3});
    replica.train(0, c.steps);
    replica.averaging.with_mean([&] { EXPECT_TRUE(same_bits(replica.weights(), expected)); });
    EXPECT_TRUE(same_bits(replica.weights(), apart[number(world, c)]));
    EXPECT_EQ(replica.averaging.use().averagings, 1);
    replica.train(5, 6);
    replica.averaging.with_mean([&] {
      LooseCase longer = c;
      longer.steps = 6;
      EXPECT_TRUE(same_bits(replica.weights(), testing::local_reference(longer)[0]));
    });
  });
}

TEST(Averaging, RefusesByName) {
  in_loose_world(2, [](const std::shared_ptr<World>& world) {
    const auto refused = [&](const Averaging::Mode& mode, const AveragingOptions& options = {}) {
      Replicas replicas(world);
      torch::nn::Linear linear(2, 2);
      Engine engine(linear, Sgd({.lr = 1}), {}, replicas.mine());
      return message_of<ConfigError>([&] { Averaging(engine, replicas, mode, options); });
    };
    const auto has = [](const std::string& text, const std::string& part) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    has(refused(Local{.steps = 0}), "1 or more steps between averagings, found 0");
    has(refused(Local{}, {.schedule = {{5, 1}, {5, 2}}}), "ascending steps from 0 on, found 5");
    has(refused(Local{}, {.schedule = {{5, 0}}}), "1 or more steps");
    has(refused(DiLoCo{.outer = {.lr = 0}}), "outer learning rate above 0, found 0");
    has(refused(DiLoCo{.outer = {.momentum = 1}}), "outer momentum of 0 or more and below 1");
    has(refused(Local{.steps = 3 + world->rank()}), "the averaging differs between ranks");
    has(message_of<ConfigError>([&] { Replicas(world, {.ranks = 3}); }),
        "expected a number that divides the 2 ranks of the world");
    has(message_of<ConfigError>([&] { Replicas(world, {.ranks = -1}); }), "found -1");

    Replicas replicas(world);
    torch::nn::Linear linear(2, 2);
    Engine whole(linear, Sgd({.lr = 1}), {}, world);
    has(message_of<ConfigError>([&] { Averaging(whole, replicas, Local{}); }),
        "give it replicas.mine()");
    torch::nn::Linear other(2, 2 + world->rank());
    Engine different(other, Sgd({.lr = 1}), {}, replicas.mine());
    has(message_of<ConfigError>([&] { Averaging(different, replicas, Local{}); }),
        "what the replicas' engines hold differs between ranks");
  });
}

}  // namespace
}  // namespace trireme::averaging_test
