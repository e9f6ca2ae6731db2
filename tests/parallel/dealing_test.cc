// Who computes which micro-batch changes no bit, and a step that a rank gives up leaves no trace.

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::dealing_test {
namespace {

namespace nn = torch::nn;
using testing::fork_ranks;
using testing::message_of;
using torch::Tensor;
using Deal = std::vector<std::int64_t>;

struct Mode {
  int zero;
  Placement placement;
  SumOrder order;
};

std::vector<Mode> modes() {
  std::vector<Mode> all;
  for (const SumOrder order : {SumOrder::kChained, SumOrder::kLocalFirst}) {
    for (const auto& [zero, placement] : {std::pair{0, Placement::kAutomatic},
                                          {1, Placement::kAutomatic},
                                          {2, Placement::kAutomatic},
                                          {3, Placement::kMapped},
                                          {3, Placement::kCopied}}) {
      all.push_back({zero, placement, order});
    }
  }
  return all;
}

std::string name_of(const Mode& mode) {
  return "stage " + std::to_string(mode.zero) +
         (mode.placement == Placement::kCopied ? " copied" : "") +
         (mode.order == SumOrder::kLocalFirst ? ", local first" : "");
}

// Small units and buckets: many of each.
EngineOptions options_of(const Mode& mode) {
  EngineOptions options;
  options.zero = mode.zero;
  options.placement = mode.placement;
  options.sum_order = mode.order;
  options.unit_bytes = 256;
  options.bucket_bytes = 128;
  options.bucket_count = 3;
  return options;
}

// Where a rank fails: not at all, before it has a loss, or when half of the gradients have come.
enum class Failure { kNone, kForward, kBackward };

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(6, 10));
    second = register_module("second", nn::Linear(10, 9));
    third = register_module("third", nn::Linear(9, 2));
  }
  Tensor forward(const Tensor& x, Failure failure = Failure::kNone) {
    Tensor hidden = at::tanh(second->forward(at::tanh(first->forward(x))));
    if (failure == Failure::kForward) {
      throw MemoryError("no room in forward");
    }
    if (failure == Failure::kBackward) {
      hidden.register_hook(
          [](const Tensor&) -> Tensor { throw MemoryError("no room in backward"); });
    }
    return third->forward(hidden);
  }
};
TORCH_MODULE(Net);

Tensor input_of(int step, std::int64_t micro_batch) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * step + micro_batch));
  return torch::randn({4, 6}, generator, torch::kFloat);
}

Tensor loss_of(const Tensor& output) {
  return (output - 0.5).pow(2).mean();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string bits_of(nn::Module& model) {
  std::string bits;
  for (const Tensor& parameter : model.parameters()) {
    const Tensor values = parameter.detach().clone().contiguous();
    bits.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return bits;
}

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

std::shared_ptr<World> world_of_one() {
  return init(testing::options_for(testing::unique_job(), 0, 1));
}

void take_step(Engine<NetImpl>& engine, int step) {
  const std::int64_t local = engine.local_micro_batches();
  for (std::int64_t k = 0; k < local; ++k) {
    engine.backward(loss_of(engine.forward(input_of(step, engine.micro_batch(k)))));
    EXPECT_EQ(engine.step(), k + 1 == local);
  }
  if (local == 0) {
    EXPECT_TRUE(engine.step());
  }
}

// Deals of every step, for three ranks.
const std::vector<Deal> kDeals = {
    {1, 1, 1}, {3, 1, 2}, {0, 2, 1}, {1, 0, 0}, {2, 2, 2}, {0, 0, 4}, {1, 1, 1}};

TEST(Dealing, ChangesNoBit) {
  in_world(3, [](std::shared_ptr<World> world) {
    Net alone;
    Engine reference(alone, AdamW({.lr = 1e-2}), {}, world_of_one());
    std::vector<std::string> expected;
    for (std::size_t step = 0; step < kDeals.size(); ++step) {
      std::int64_t total = 0;
      for (const std::int64_t count : kDeals[step]) {
        total += count;
      }
      reference.deal({total});
      EXPECT_EQ(reference.micro_batches(), total);
      take_step(reference, static_cast<int>(step));
      expected.push_back(bits_of(*alone));
    }
    std::string local_first;
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(name_of(mode));
      Net model;
      Engine engine(model, AdamW({.lr = 1e-2}), options_of(mode), world);
      for (std::size_t step = 0; step < kDeals.size(); ++step) {
        engine.deal(kDeals[step]);
        EXPECT_EQ(engine.local_micro_batches(),
                  kDeals[step][static_cast<std::size_t>(world->rank())]);
        take_step(engine, static_cast<int>(step));
        if (mode.order == SumOrder::kChained) {
          EXPECT_EQ(bits_of(*model), expected[step]) << "step " << step;
        }
      }
      if (mode.order == SumOrder::kLocalFirst) {
        // Another order of the sums: the same at every stage, and the chain's within rounding.
        local_first = local_first.empty() ? bits_of(*model) : local_first;
        EXPECT_EQ(bits_of(*model), local_first);
        const auto theirs = model->parameters();
        const auto ours = alone->parameters();
        for (std::size_t i = 0; i < ours.size(); ++i) {
          EXPECT_TRUE(
              at::allclose(theirs[i].detach().clone(), ours[i].detach().clone(), 1e-4, 1e-5));
        }
      }
    }
  });
}

TEST(Dealing, NumbersTheMicroBatchesRoundByRound) {
  in_world(3, [](std::shared_ptr<World> world) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), {.micro_batches = 7}, world);
    std::vector<std::int64_t> mine;
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      mine.push_back(engine.micro_batch(k));
      EXPECT_EQ(mine.back(), world->rank() + 3 * k);  // where nothing was dealt
    }
    engine.deal({3, 0, 2});  // rounds {0}, {0, 2}, {0, 2}
    const std::vector<std::vector<std::int64_t>> expected = {{0, 1, 3}, {}, {2, 4}};
    mine.clear();
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      mine.push_back(engine.micro_batch(k));
    }
    EXPECT_EQ(mine, expected[static_cast<std::size_t>(world->rank())]);
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.micro_batch(5); }), "no number 5"));
    EXPECT_THROW(engine.micro_batch(-1), ConfigError);
  });
}

TEST(Dealing, RefusesWhatCannotBeDealt) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    Engine engine(model, Sgd({.lr = 0.1}), {}, world);
    EXPECT_TRUE(
        contains(message_of<ConfigError>([&] { engine.deal({1}); }), "each of the 2 ranks"));
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.deal({0, 0}); }), "not all 0"));
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.deal({2, -1}); }), "-1"));
    EXPECT_EQ(engine.micro_batches(), 2);  // as before
    engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
    EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                           engine.deal({1, 1});
                         }),
                         "middle of a step"));
    engine.step();
    // A rank without a micro-batch is in the middle of a step once it has asked for its sums.
    engine.deal({2, 0});
    if (world->rank() == 0) {
      for (int k = 0; k < 2; ++k) {
        engine.backward(loss_of(engine.forward(input_of(0, k))));
        if (k == 0) {
          engine.step();
        }
      }
    } else {
      EXPECT_TRUE(contains(message_of<ConfigError>([&] { engine.backward(at::zeros({})); }),
                           "has no micro-batch"));
    }
    engine.clip_grad_norm(1);
    EXPECT_THROW(engine.deal({1, 1}), ConfigError);
    engine.step();
    engine.deal({1, 1});
  });
}

// Computes a step in which `rank` fails at its micro-batch `at`; returns what every rank is told.
std::string failed_step(
    Engine<NetImpl>& engine, int step, int rank, std::int64_t at, Failure failure) {
  return message_of<StepGivenUp>([&] {
    const bool fails = engine.ranks().rank() == rank;
    for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
      std::string reason;
      try {
        engine.backward(loss_of(engine.forward(input_of(step, engine.micro_batch(k)),
                                               fails && k == at ? failure : Failure::kNone)));
      } catch (const MemoryError& error) {
        reason = error.what();
      }
      if (!reason.empty()) {
        engine.give_up(reason);
      }
      engine.step();
    }
    if (engine.local_micro_batches() == 0) {
      engine.step();
    }
  });
}

TEST(GivingUp, LeavesNoTrace) {
  in_world(3, [](std::shared_ptr<World> world) {
    const std::vector<Deal> deals = {{1, 1, 1}, {3, 1, 2}, {0, 2, 1}, {1, 1, 1}};
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(name_of(mode));
      Net undisturbed;
      Net model;
      Engine calm(undisturbed, AdamW({.lr = 1e-2}), options_of(mode), world);
      Engine engine(model, AdamW({.lr = 1e-2}), options_of(mode), world);
      for (int step = 0; step < static_cast<int>(deals.size()); ++step) {
        const Deal& deal = deals[static_cast<std::size_t>(step)];
        calm.deal(deal);
        take_step(calm, step);
        for (int rank = 0; rank < 3; ++rank) {
          for (std::int64_t at = 0; at < deal[static_cast<std::size_t>(rank)]; ++at) {
            for (const Failure failure : {Failure::kForward, Failure::kBackward}) {
              SCOPED_TRACE(detail::concat("step ",
                                          step,
                                          ", rank ",
                                          rank,
                                          " at ",
                                          at,
                                          failure == Failure::kForward ? " forward" : " backward"));
              engine.deal(deal);
              const std::string before = bits_of(*model);
              const std::string message = failed_step(engine, step, rank, at, failure);
              EXPECT_TRUE(
                  contains(message, detail::concat("rank ", rank, " gave up step ", step + 1)))
                  << message;
              EXPECT_TRUE(contains(
                  message,
                  failure == Failure::kForward ? "no room in forward" : "no room in backward"))
                  << message;
              EXPECT_EQ(bits_of(*model), before);
              EXPECT_EQ(engine.steps(), step);
            }
          }
        }
        engine.deal(deal);
        take_step(engine, step);
        EXPECT_EQ(bits_of(*model), bits_of(*undisturbed)) << "step " << step;
        EXPECT_EQ(engine.steps(), step + 1);
      }
    }
  });
}

TEST(GivingUp, SeveralRanksAtOnceAndAlone) {
  for (const int size : {1, 3}) {
    in_world(size, [size](std::shared_ptr<World> world) {
      for (const Mode& mode : modes()) {
        SCOPED_TRACE(name_of(mode));
        Net undisturbed;
        Net model;
        EngineOptions options = options_of(mode);
        options.accumulate = 2;
        Engine calm(undisturbed, Sgd({.lr = 0.1}), options, world);
        Engine engine(model, Sgd({.lr = 0.1}), options, world);
        // Every rank computes one of two and says no, or fails in the second.
        for (const bool in_second : {false, true}) {
          const std::string message = message_of<StepGivenUp>([&] {
            engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
            if (in_second) {
              engine.step();
              EXPECT_THROW(
                  engine.backward(loss_of(engine.forward(input_of(0, 0), Failure::kBackward))),
                  MemoryError);
            }
            engine.give_up(detail::concat("a trial of rank ", world->rank()));
          });
          EXPECT_TRUE(contains(message, "rank 0 gave up step 1: a trial of rank 0")) << message;
        }
        try {
          engine.give_up("");
          ADD_FAILURE() << "nothing was thrown";
        } catch (const StepGivenUp& error) {
          EXPECT_EQ(error.rank(), 0);
          EXPECT_TRUE(contains(error.what(), "no reason was given")) << error.what();
        }
        const std::string longer(5000, 'x');
        EXPECT_TRUE(contains(message_of<StepGivenUp>([&] { engine.give_up(longer); }), longer));
        for (int step = 0; step < 2; ++step) {
          take_step(calm, step);
          take_step(engine, step);
        }
        EXPECT_EQ(bits_of(*model), bits_of(*undisturbed));
        // Nothing is left to give up behind the last backward.
        engine.backward(loss_of(engine.forward(input_of(2, 0))));
        engine.step();
        engine.backward(loss_of(engine.forward(input_of(2, size))));
        EXPECT_TRUE(
            contains(message_of<ConfigError>([&] { engine.give_up("late"); }), "last micro-batch"));
        engine.step();
        engine.unwrap();
        EXPECT_THROW(engine.give_up("gone"), ConfigError);
      }
    });
  }
}

// What a rank may do between backward and step: here it learns of a peer that gave up.
TEST(GivingUp, IsToldWhereSumsAreAskedFor) {
  in_world(3, [](std::shared_ptr<World> world) {
    for (const Mode& mode : modes()) {
      for (const int what : {0, 1, 2}) {
        SCOPED_TRACE(detail::concat(name_of(mode), " asks ", what));
        Net model;
        Engine engine(model, Sgd({.lr = 0.1}), options_of(mode), world);
        engine.deal({1, 0, 1});
        const std::string message = message_of<StepGivenUp>([&] {
          if (world->rank() == 2) {
            EXPECT_THROW(
                engine.backward(loss_of(engine.forward(input_of(0, 2), Failure::kBackward))),
                MemoryError);
            engine.give_up("no room");
          }
          if (world->rank() == 0) {
            engine.backward(loss_of(engine.forward(input_of(0, 0))));
          }
          if (what == 0) {
            engine.clip_grad_norm(1);
          } else if (what == 1) {
            engine.grad("first.weight");
          }
          engine.step();
        });
        EXPECT_TRUE(contains(message, "rank 2 gave up step 1: no room")) << message;
        take_step(engine, 0);
        EXPECT_EQ(engine.steps(), 1);
      }
    }
  });
}

// Ranks that have joined are told, too, and join again.
TEST(GivingUp, ReachesRanksThatHaveJoined) {
  in_world(3, [](std::shared_ptr<World> world) {
    for (const Mode& mode : modes()) {
      for (const bool clips : {false, true}) {
        SCOPED_TRACE(name_of(mode));
        Net undisturbed;
        Net model;
        Engine calm(undisturbed, Sgd({.lr = 0.1}), options_of(mode), world);
        Engine engine(model, Sgd({.lr = 0.1}), options_of(mode), world);
        for (auto* each : {&calm, &engine}) {
          if (world->rank() == 1) {
            if (each == &engine) {
              EXPECT_TRUE(contains(message_of<StepGivenUp>([&] { each->join(); }), "no room"));
            }
            each->join();
            continue;
          }
          if (each == &engine) {
            message_of<StepGivenUp>([&] {
              if (world->rank() == 2) {
                each->give_up("no room");
              }
              each->backward(loss_of(each->forward(input_of(0, 0))));
              if (clips) {
                each->clip_grad_norm(1);
              }
              each->step();
            });
          }
          take_step(*each, 0);
          each->join();
        }
        EXPECT_EQ(bits_of(*model), bits_of(*undisturbed));
      }
    }
  });
}

struct SparseNetImpl : nn::Module {
  nn::Embedding table{nullptr}, other{nullptr};
  nn::Linear head{nullptr};
  SparseNetImpl() {
    torch::manual_seed(5);
    table = register_module("table", nn::Embedding(nn::EmbeddingOptions(20, 4).sparse(true)));
    other = register_module("other", nn::Embedding(nn::EmbeddingOptions(12, 4).sparse(true)));
    head = register_module("head", nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& ids, Failure failure) {
    Tensor sum = table->forward(ids);
    if (failure == Failure::kBackward) {
      sum.register_hook([](const Tensor&) -> Tensor { throw MemoryError("no room"); });
    }
    return head->forward(sum + other->forward(ids.remainder(12)));
  }
};
TORCH_MODULE(SparseNet);

Tensor ids_of(int step, std::int64_t micro_batch) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(77 * step + micro_batch));
  return torch::randint(0, 20, {6}, generator, torch::kLong);
}

TEST(Dealing, SparseGradientsFollow) {
  in_world(3, [](std::shared_ptr<World> world) {
    const auto train = [](Engine<SparseNetImpl>& engine, int step) {
      for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
        engine.backward(
            loss_of(engine.forward(ids_of(step, engine.micro_batch(k)), Failure::kNone)));
        engine.step();
      }
      if (engine.local_micro_batches() == 0) {
        engine.step();
      }
    };
    SparseNet alone;
    Engine reference(alone, Sgd({.lr = 0.1}), {}, world_of_one());
    for (int step = 0; step < 3; ++step) {
      reference.deal({step == 1 ? 6 : 4});
      train(reference, step);
    }
    std::string local_first;
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(name_of(mode));
      SparseNet model;
      Engine engine(model, Sgd({.lr = 0.1}), options_of(mode), world);
      for (int step = 0; step < 3; ++step) {
        engine.deal(step == 1 ? Deal{3, 1, 2} : Deal{0, 3, 1});
        for (const std::int64_t at : {0, 1}) {
          const std::string message = message_of<StepGivenUp>([&] {
            for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
              const bool fails = world->rank() == 1 && k == (step == 1 ? 0 : at);
              std::string reason;
              try {
                engine.backward(
                    loss_of(engine.forward(ids_of(step, engine.micro_batch(k)),
                                           fails ? Failure::kBackward : Failure::kNone)));
              } catch (const MemoryError& error) {
                reason = error.what();
              }
              if (!reason.empty()) {
                engine.give_up(reason);
              }
              engine.step();
            }
            engine.step();
          });
          EXPECT_TRUE(contains(message, "rank 1 gave up")) << message;
        }
        train(engine, step);
      }
      if (mode.order == SumOrder::kChained) {
        EXPECT_EQ(bits_of(*model), bits_of(*alone));
      } else {
        local_first = local_first.empty() ? bits_of(*model) : local_first;
        EXPECT_EQ(bits_of(*model), local_first);
      }
    }
  });
}

TEST(Dealing, WorksWithAGradientHook) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const Mode& mode : modes()) {
      SCOPED_TRACE(name_of(mode));
      Net undisturbed;
      Net model;
      EngineOptions options = options_of(mode);
      options.gradient_hook = [](const GradientBucket& bucket) {
        bucket.ranks.all_reduce(bucket.values).wait();
        return bucket.values;
      };
      Engine calm(undisturbed, Sgd({.lr = 0.1}), options, world);
      Engine engine(model, Sgd({.lr = 0.1}), options, world);
      for (int step = 0; step < 3; ++step) {
        const Deal deal = step == 1 ? Deal{2, 1} : Deal{1, 1};
        calm.deal(deal);
        take_step(calm, step);
        engine.deal(deal);
        for (const Failure failure : {Failure::kForward, Failure::kBackward}) {
          failed_step(engine, step, step % 2, 0, failure);
        }
        take_step(engine, step);
      }
      EXPECT_EQ(bits_of(*model), bits_of(*undisturbed));
    }
  });
}

// With float16 a step that is given up says nothing about the loss scale.
TEST(GivingUp, LeavesTheLossScaleAlone) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    Engine engine(model,
                  Sgd({.lr = 0.1}),
                  {.zero = 2, .precision = Precision::kFloat16, .loss_scale = {.initial = 256}},
                  world);
    for (int i = 0; i < 3; ++i) {
      message_of<StepGivenUp>([&] {
        if (world->rank() == 0) {
          engine.give_up("no room");
        }
        // An overflow on the other rank does not count either.
        engine.backward(loss_of(engine.forward(input_of(0, 1).to(at::kHalf)).to(at::kFloat)) *
                        1e30);
        engine.step();
      });
    }
    EXPECT_EQ(engine.loss_scale(), 256);
    EXPECT_EQ(engine.skipped_steps(), 0);
    engine.backward(loss_of(engine.forward(input_of(0, 1).to(at::kHalf)).to(at::kFloat)));
    engine.step();
    EXPECT_EQ(engine.steps(), 1);
  });
}

struct NormNetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr};
  NormNetImpl() {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(6, 8));
    norm = register_module("norm", nn::BatchNorm1d(8));
    second = register_module("second", nn::Linear(8, 2));
  }
  Tensor forward(const Tensor& x) { return second->forward(norm->forward(first->forward(x))); }
};
TORCH_MODULE(NormNet);

TEST(Precision, LeavesBatchNormsInFloat32) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
      const at::ScalarType type = precision == Precision::kFloat16 ? at::kHalf : at::kBFloat16;
      for (const int zero : {0, 1, 2, 3}) {
        NormNet model;
        Engine engine(model, Sgd({.lr = 0.1}), {.zero = zero, .precision = precision}, world);
        EXPECT_EQ(model->norm->weight.scalar_type(), at::kFloat);
        EXPECT_EQ(model->norm->bias.scalar_type(), at::kFloat);
        EXPECT_EQ(model->norm->running_mean.scalar_type(), at::kFloat);
        EXPECT_EQ(model->first->weight.scalar_type(), type);
        const Tensor before = model->norm->weight.detach().clone();
        engine.backward(
            loss_of(engine.forward(input_of(0, world->rank()).to(type)).to(at::kFloat)));
        engine.step();
        EXPECT_EQ(engine.steps(), 1);
        EXPECT_FALSE(torch::equal(before, model->norm->weight));
      }
    }
  });
}

TEST(Engine, KnowsItsNormAndWhatDdpWouldTake) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const int zero : {0, 1, 2, 3}) {
      Net model;
      Engine engine(model, AdamW({.lr = 1e-2}), {.zero = zero, .clip_norm = 1e-3}, world);
      EXPECT_TRUE(std::isnan(engine.gradient_norm()));
      engine.backward(loss_of(engine.forward(input_of(0, world->rank()))));
      const Tensor gradient = engine.grad("third.bias");
      engine.step();
      EXPECT_GT(engine.gradient_norm(), gradient.norm().item<double>());  // of all of them
      std::int64_t numel = 0;
      for (const Tensor& parameter : model->parameters()) {
        numel += parameter.numel();
      }
      const MemoryReport report = engine.memory_report();
      EXPECT_EQ(report.ddp_bytes, 4 * numel * 4);  // parameters, gradients, two moments
      EXPECT_LE(report.predicted_bytes, report.ddp_bytes);
      EXPECT_EQ(report.predicted_bytes == report.ddp_bytes, zero == 0);
    }
  });
}

}  // namespace
}  // namespace trireme::dealing_test
