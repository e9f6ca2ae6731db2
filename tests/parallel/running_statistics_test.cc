// Running statistics of batch norms: those of one process, for any number of ranks.

#include "trireme/parallel/running_statistics.h"

#include <gtest/gtest.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::running_statistics_test {
namespace {

namespace nn = torch::nn;
using testing::fork_ranks;
using torch::Tensor;

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr}, twice{nullptr}, sometimes{nullptr}, frozen{nullptr};
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(5, 7));
    norm = register_module("norm", nn::BatchNorm1d(7));
    twice = register_module("twice", nn::BatchNorm1d(nn::BatchNormOptions(7).momentum(0.3)));
    sometimes = register_module("sometimes", nn::BatchNorm1d(7));
    frozen = register_module("frozen", nn::BatchNorm1d(7));
    second = register_module("second", nn::Linear(7, 2));
    const torch::NoGradGuard no_grad;
    frozen->running_mean.fill_(0.25);
    frozen->running_var.fill_(4);
  }
  // Norms that evaluate stay so.
  void train(bool on = true) override {
    nn::Module::train(on);
    frozen->train(false);
  }
  Tensor forward(const Tensor& x, std::int64_t micro_batch) {
    Tensor y = norm->forward(first->forward(x));
    y = twice->forward(at::relu(twice->forward(y)) + y);
    if (micro_batch % 2 == 1) {
      y = sometimes->forward(at::tanh(y));
    }
    return second->forward(frozen->forward(y));
  }
};
TORCH_MODULE(Net);

Tensor input_of(int step, std::int64_t micro_batch) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * step + micro_batch));
  return torch::randn({6, 5}, generator, torch::kFloat) * 2 + 1;
}

Tensor loss_of(const Tensor& output) {
  return (output - 0.5).pow(2).mean();
}

std::string bits_of(const std::vector<Tensor>& tensors) {
  std::string bits;
  for (const Tensor& tensor : tensors) {
    const Tensor values = tensor.detach().clone().contiguous();
    bits.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return bits;
}

std::shared_ptr<World> world_of_one() {
  return init(testing::options_for(testing::unique_job(), 0, 1));
}

void in_world(int size, const std::function<void(std::shared_ptr<World>)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    body(init(testing::options_for(job, rank, size)));
  });
}

void take_step(Engine<NetImpl>& engine, RunningStatistics& statistics, int step) {
  for (std::int64_t k = 0; k < engine.local_micro_batches(); ++k) {
    const std::int64_t m = engine.micro_batch(k);
    statistics.begin();
    const Tensor loss = loss_of(engine.forward(input_of(step, m), m));
    statistics.end(m);
    engine.backward(loss);
    engine.step();
  }
  if (engine.local_micro_batches() == 0) {
    engine.step();
  }
  statistics.finish_step(engine.micro_batches());
}

constexpr int kSteps = 4;
constexpr std::int64_t kMicroBatches = 6;

TEST(RunningStatistics, AreThoseOfOneProcess) {
  for (const int size : {1, 2, 3, 4}) {
    in_world(size, [size](std::shared_ptr<World> world) {
      // What torch itself does with all micro-batches, one after the other.
      Net plain;
      plain->train();
      // One process with our statistics, and the same parameters in every step.
      Net alone;
      alone->train();
      RunningStatistics one(*alone, world_of_one());
      Engine reference(alone, Sgd({.lr = 0.1}), {.micro_batches = kMicroBatches}, world_of_one());
      Net model;
      model->train();
      RunningStatistics statistics(*model, world);
      EXPECT_FALSE(statistics.empty());
      EXPECT_TRUE(statistics.covers_all_buffers());
      Engine engine(model,
                    Sgd({.lr = 0.1}),
                    {.zero = size % 4, .micro_batches = kMicroBatches, .broadcast_buffers = false},
                    world);
      for (int step = 0; step < kSteps; ++step) {
        SCOPED_TRACE(detail::concat(size, " ranks, step ", step));
        {
          const torch::NoGradGuard no_grad;
          const auto from = alone->parameters();
          const auto to = plain->parameters();
          for (std::size_t i = 0; i < to.size(); ++i) {
            to[i].copy_(from[i]);
          }
          for (std::int64_t m = 0; m < kMicroBatches; ++m) {
            plain->forward(input_of(step, m), m);
          }
        }
        take_step(reference, one, step);
        if (size > 1 && step == 2) {  // all of them on the last rank
          std::vector<std::int64_t> deal(static_cast<std::size_t>(size), 0);
          deal.back() = kMicroBatches;
          engine.deal(deal);
        }
        take_step(engine, statistics, step);
        EXPECT_EQ(bits_of(model->buffers()), bits_of(alone->buffers()));
        EXPECT_EQ(bits_of(model->parameters()), bits_of(alone->parameters()));
        const auto ours = alone->named_buffers();
        for (const auto& theirs : plain->named_buffers()) {
          EXPECT_TRUE(at::allclose(*ours.find(theirs.key()), theirs.value(), 1e-5, 1e-6))
              << theirs.key() << "\n"
              << *ours.find(theirs.key()) << "\n"
              << theirs.value();
        }
        EXPECT_EQ(alone->twice->num_batches_tracked.item<std::int64_t>(),
                  2 * kMicroBatches * (step + 1));
        EXPECT_EQ(alone->sometimes->num_batches_tracked.item<std::int64_t>(),
                  kMicroBatches / 2 * (step + 1));
        EXPECT_EQ(alone->frozen->running_mean[0].item<float>(), 0.25F);
      }
    });
  }
}

TEST(RunningStatistics, BeginWithThoseOfRank0) {
  in_world(3, [](std::shared_ptr<World> world) {
    Net model;
    model->train();
    {
      const torch::NoGradGuard no_grad;
      model->norm->running_mean.fill_(world->rank() + 1);
      model->norm->num_batches_tracked.fill_(10 * world->rank() + 10);
    }
    RunningStatistics statistics(*model, world);
    Engine engine(model, Sgd({.lr = 0.1}), {.micro_batches = 3, .broadcast_buffers = false}, world);
    take_step(engine, statistics, 0);
    EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 13);
    std::vector<double> values;
    for (int i = 0; i < 7; ++i) {
      values.push_back(model->norm->running_mean[i].item<float>());
    }
    std::vector<double> all(values.size() * 3);
    world->all_gather(values, all).wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i], values[i % values.size()]);
    }
  });
}

TEST(RunningStatistics, OfAStepThatIsNotTakenAreDropped) {
  in_world(2, [](std::shared_ptr<World> world) {
    Net model;
    model->train();
    RunningStatistics statistics(*model, world);
    Engine engine(model, Sgd({.lr = 0.1}), {.micro_batches = 4, .broadcast_buffers = false}, world);
    take_step(engine, statistics, 0);
    const std::string before = bits_of(model->buffers());
    statistics.begin();
    const std::int64_t m = engine.micro_batch(0);
    engine.backward(loss_of(engine.forward(input_of(1, m), m)));
    statistics.end(m);
    EXPECT_THROW(engine.give_up("a test"), StepGivenUp);
    statistics.forget_step();
    EXPECT_EQ(bits_of(model->buffers()), before);
    // Evaluation sees them, too.
    model->eval();
    const Tensor output = model->forward(input_of(2, 0), 1);
    model->train();
    statistics.begin();
    statistics.forget_step();
    model->eval();
    EXPECT_TRUE(torch::equal(output, model->forward(input_of(2, 0), 1)));
  });
}

TEST(RunningStatistics, KnowWhatTheyLookAfter) {
  in_world(1, [](std::shared_ptr<World> world) {
    nn::Linear linear(3, 4);
    RunningStatistics none(*linear, world);
    EXPECT_TRUE(none.empty());
    EXPECT_TRUE(none.covers_all_buffers());
    none.begin();
    none.end(0);
    none.finish_step(1);
    none.forget_step();

    nn::BatchNorm1d cumulative(nn::BatchNormOptions(4).momentum(std::nullopt));
    RunningStatistics other(*cumulative, world);
    EXPECT_TRUE(other.empty());
    EXPECT_FALSE(other.covers_all_buffers());

    Net model;
    model->register_buffer("mask", at::ones({3}));
    EXPECT_FALSE(RunningStatistics(*model, world).covers_all_buffers());
  });
}

}  // namespace
}  // namespace trireme::running_statistics_test
