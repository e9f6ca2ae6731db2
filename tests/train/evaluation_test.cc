// Evaluation: what a loop over all samples gives, with the same bits for any number of ranks.

#include "trireme/train/evaluation.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "data/formula_dataset.h"
#include "support/ranks.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"

namespace trireme::evaluation_test {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::fork_ranks;
using testing::FormulaDataset;
using testing::message_of;

constexpr std::int64_t kFeatures = 6;
constexpr std::int64_t kClasses = 4;

float value_of(std::int64_t sample, std::int64_t place) {
  return static_cast<float>(std::sin(0.7 * static_cast<double>(sample * 13 + place * 5)));
}

// Of formulas, too: tokens, and numbers to predict.
class OtherDataset final : public Dataset {
 public:
  OtherDataset(std::int64_t size, const SampleShape& shape) : size_(size), shape_(shape) {}
  std::int64_t size() const override { return size_; }
  const SampleShape& shape() const override { return shape_; }
  std::int64_t label(std::int64_t) const override { throw ConfigError("no labels"); }
  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    batch = Batch{};
    batch.samples = static_cast<std::int64_t>(samples.size());
    for (const std::int64_t sample : samples) {
      batch.ids.push_back(sample);
      for (std::int64_t i = 0; i < shape_.length; ++i) {
        batch.tokens.push_back((sample * 7 + i * i) % shape_.classes);
      }
      for (std::int64_t i = 0; i < (shape_.length > 0 ? 0 : kFeatures); ++i) {
        batch.dense.push_back(value_of(sample, i));
      }
      if (shape_.classes == 0) {
        batch.targets.push_back(value_of(sample, 99));
      }
    }
  }

 private:
  std::int64_t size_;
  SampleShape shape_;
};

struct NetImpl : nn::Module {
  nn::Linear linear{nullptr};
  nn::Dropout drop{nullptr};
  explicit NetImpl(std::int64_t outputs) {
    torch::manual_seed(3);
    linear = register_module("linear", nn::Linear(kFeatures, outputs));
    drop = register_module("drop", nn::Dropout(0.5));
  }
  Tensor forward(const Tensor& x) { return drop->forward(linear->forward(x)); }
};
TORCH_MODULE(Net);

Trainable trainable(const Net& net) {
  return {net.ptr(),
          [net = net.ptr()](const TensorBatch& batch) { return net->forward(batch.dense); }};
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

void expect_same_bits(const Evaluation& a, const Evaluation& b) {
  ASSERT_GT(a.metrics.size(), 0U);
  ASSERT_EQ(a.metrics.size(), b.metrics.size());
  for (const auto& [name, value] : a.metrics) {
    EXPECT_EQ(std::memcmp(&value, &b.metrics.at(name), sizeof(value)), 0) << name;
  }
  EXPECT_EQ(a.evaluated, b.evaluated);
  ASSERT_EQ(a.confusion.has_value(), b.confusion.has_value());
  if (a.confusion) {
    EXPECT_EQ(a.confusion->counts(), b.confusion->counts());
  }
  ASSERT_EQ(a.samples.size(), b.samples.size());
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    EXPECT_EQ(std::memcmp(&a.samples[i], &b.samples[i], sizeof(SampleResult)), 0) << i;
  }
  EXPECT_EQ(a.fingerprint, b.fingerprint);
}

TEST(Evaluate, IsTheSameForAnyNumberOfRanks) {
  for (const int size : {1, 2, 3}) {
    for (const std::int64_t total : {1, 5, 64, 103}) {
      in_world(size, [size, total](std::shared_ptr<World> world) {
        SCOPED_TRACE(detail::concat(size, " ranks, ", total, " samples"));
        const FormulaDataset data(
            total, {kFeatures}, kClasses, [](std::int64_t i) { return i * i % 3; }, value_of);
        const Task task(data.shape());
        Net net(kClasses);
        net->train();
        const Trainable model = trainable(net);
        const EvaluationOptions options{.batch = 16, .keep_samples = true};
        const Evaluation found = evaluate(model, task, data, options, *world);
        EXPECT_TRUE(net->is_training());
        EXPECT_TRUE(net->drop->is_training());
        expect_same_bits(found, evaluate(model, task, data, options, *world_of_one()));

        // One sample at a time.
        net->eval();
        double loss = 0;
        std::int64_t right = 0;
        ConfusionMatrix confusion(kClasses);
        EXPECT_EQ(found.evaluated, total);
        ASSERT_EQ(static_cast<std::int64_t>(found.samples.size()), total);
        for (std::int64_t i = 0; i < total; ++i) {
          Tensor x = at::empty({1, kFeatures});
          for (std::int64_t place = 0; place < kFeatures; ++place) {
            x[0][place] = value_of(i, place);
          }
          const Tensor scores = net->forward(x).detach().to(at::kDouble);
          const std::int64_t target = i * i % 3;
          const double mine = -at::log_softmax(scores, 1)[0][target].item<double>();
          const auto predicted = scores.argmax(1).item<std::int64_t>();
          loss += mine;
          right += predicted == target ? 1 : 0;
          confusion.add(target, predicted);
          const SampleResult& sample = found.samples[static_cast<std::size_t>(i)];
          EXPECT_EQ(sample.target, static_cast<double>(target));
          EXPECT_EQ(sample.prediction, static_cast<double>(predicted));
          EXPECT_NEAR(sample.loss, mine, 1e-5);
        }
        const auto count = static_cast<double>(total);
        EXPECT_NEAR(found.metrics.at("loss"), loss / count, 1e-5);
        EXPECT_EQ(found.metrics.at("accuracy"), static_cast<double>(right) / count);
        EXPECT_EQ(found.confusion->counts(), confusion.counts());
        EXPECT_EQ(found.metrics.at("f1"), confusion.macro().f1);
        EXPECT_EQ(found.metrics.at("precision"), confusion.macro().precision);
        EXPECT_EQ(found.metrics.at("f1_micro"), found.metrics.at("accuracy"));
      });
    }
  }
}

// Where a model is sure of the right class, LibTorch's loss is -0.
TEST(Evaluate, ALossOfZeroIsTheSameForAnyNumberOfRanks) {
  in_world(2, [](std::shared_ptr<World> world) {
    const FormulaDataset data(
        5, {kFeatures}, kClasses, [](std::int64_t) { return 1; }, value_of);
    const Task task(data.shape());
    Net net(kClasses);
    const Trainable sure{net.ptr(), [](const TensorBatch& batch) {
                           Tensor scores = at::zeros({batch.samples, kClasses});
                           scores.select(1, 1).fill_(1000);
                           return scores;
                         }};
    const EvaluationOptions options{.batch = 2, .keep_samples = true};
    const Evaluation found = evaluate(sure, task, data, options, *world);
    expect_same_bits(found, evaluate(sure, task, data, options, *world_of_one()));
    EXPECT_EQ(found.samples.front().loss, 0);
    EXPECT_FALSE(std::signbit(found.samples.front().loss));
  });
}

// Of three samples one has no numbers for scores, of six one has a single such score: half of all.
TEST(Evaluate, ScoresThatAreNoNumbersAreWrong) {
  in_world(2, [](std::shared_ptr<World> world) {
    constexpr std::int64_t kTotal = 12;
    const auto target_of = [](std::int64_t i) { return i % kClasses; };
    const FormulaDataset data(kTotal, {kFeatures}, kClasses, target_of, value_of);
    const Task task(data.shape());
    Net net(kClasses);
    const float no_number = std::numeric_limits<float>::quiet_NaN();
    const Trainable model{net.ptr(), [&](const TensorBatch& batch) {
                            Tensor scores = at::zeros({batch.samples, kClasses});
                            for (std::int64_t i = 0; i < batch.samples; ++i) {
                              const std::int64_t sample = batch.ids[static_cast<std::size_t>(i)];
                              scores[i][target_of(sample)] = sample % 6 == 1 ? no_number : 1000;
                              if (sample % 3 == 0) {
                                scores[i].fill_(no_number);
                              }
                            }
                            return scores;
                          }};
    const Evaluation found =
        evaluate(model, task, data, {.batch = 5, .keep_samples = true}, *world);
    std::vector<double> hits(kClasses);
    for (std::int64_t i = 0; i < kTotal; ++i) {
      const bool told = i % 3 != 0 && i % 6 != 1;
      const SampleResult& sample = found.samples[static_cast<std::size_t>(i)];
      EXPECT_EQ(sample.prediction, static_cast<double>(told ? target_of(i) : -1)) << i;
      hits[static_cast<std::size_t>(target_of(i))] += told ? 1 : 0;
    }
    EXPECT_EQ(found.metrics.at("accuracy"), 0.5);
    EXPECT_EQ(found.metrics.at("f1_micro"), 0.5);
    double f1 = 0;
    for (const double each : hits) {
      f1 += 2 * each / (each + 3) / kClasses;  // three samples of each class, and no wrong class
    }
    EXPECT_NEAR(found.metrics.at("f1"), f1, 1e-12);
    EXPECT_EQ(found.confusion->total(), kTotal);
  });
}

TEST(Evaluate, PredictsTokens) {
  in_world(2, [](std::shared_ptr<World> world) {
    SampleShape shape;
    shape.kind = SampleKind::kTokens;
    shape.length = 5;
    shape.classes = 11;
    const OtherDataset data(13, shape);
    const Task task(shape);
    Net net(1);
    torch::manual_seed(5);
    const Tensor table = at::randn({11, 11});
    const Trainable model{net.ptr(), [&](const TensorBatch& batch) {
                            return table.index_select(0, batch.tokens.slice(1, 0, 4).flatten())
                                .view({batch.samples, 4, 11});
                          }};
    const EvaluationOptions options{.batch = 3, .keep_samples = true};
    const Evaluation found = evaluate(model, task, data, options, *world);
    expect_same_bits(found, evaluate(model, task, data, options, *world_of_one()));
    double loss = 0;
    std::int64_t right = 0;
    for (std::int64_t i = 0; i < 13; ++i) {
      double of_sample = 0;
      std::int64_t right_in_sample = 0;
      for (std::int64_t k = 0; k + 1 < 5; ++k) {
        const Tensor scores = table[(i * 7 + k * k) % 11].to(at::kDouble);
        const std::int64_t next = (i * 7 + (k + 1) * (k + 1)) % 11;
        of_sample -= at::log_softmax(scores, 0)[next].item<double>();
        right_in_sample += scores.argmax().item<std::int64_t>() == next ? 1 : 0;
      }
      loss += of_sample;
      right += right_in_sample;
      const SampleResult& sample = found.samples[static_cast<std::size_t>(i)];
      EXPECT_EQ(sample.target, 4);
      EXPECT_EQ(sample.prediction, static_cast<double>(right_in_sample));
      EXPECT_NEAR(sample.loss, of_sample / 4, 1e-5);
    }
    EXPECT_NEAR(found.metrics.at("loss"), loss / (13 * 4), 1e-5);
    EXPECT_EQ(found.metrics.at("perplexity"), std::exp(found.metrics.at("loss")));
    EXPECT_EQ(found.metrics.at("accuracy"), static_cast<double>(right) / (13 * 4));
    EXPECT_FALSE(found.confusion.has_value());
  });
}

TEST(Evaluate, PredictsNumbers) {
  in_world(3, [](std::shared_ptr<World> world) {
    SampleShape shape;
    shape.dense = {kFeatures};
    const OtherDataset data(17, shape);
    Net net(1);
    const Task task(shape);
    const EvaluationOptions options{.batch = 4, .keep_samples = true};
    const Evaluation found = evaluate(trainable(net), task, data, options, *world);
    expect_same_bits(found, evaluate(trainable(net), task, data, options, *world_of_one()));
    EXPECT_EQ(found.metrics.size(), 3U);
    double loss = 0;
    double absolute = 0;
    double squares = 0;
    for (std::int64_t i = 0; i < 17; ++i) {
      const SampleResult& sample = found.samples[static_cast<std::size_t>(i)];
      EXPECT_EQ(sample.target, value_of(i, 99));
      EXPECT_NEAR(sample.loss, std::pow(sample.prediction - sample.target, 2), 1e-5);
      loss += sample.loss;
      absolute += std::fabs(sample.prediction - sample.target);
      squares += std::pow(sample.prediction - sample.target, 2);
    }
    EXPECT_NEAR(found.metrics.at("loss"), loss / 17, 1e-9);
    EXPECT_NEAR(found.metrics.at("mae"), absolute / 17, 1e-12);
    EXPECT_NEAR(found.metrics.at("rmse"), std::sqrt(squares / 17), 1e-12);
    EXPECT_NE(found.to_string().find(", mae 0."), std::string::npos) << found.to_string();
    // A batch of more than there is is all there is.
    for (const std::int64_t batch : {std::int64_t{17}, std::numeric_limits<std::int64_t>::max()}) {
      const Evaluation whole = evaluate(trainable(net), task, data, {.batch = batch}, *world);
      EXPECT_NEAR(whole.metrics.at("loss"), loss / 17, 1e-5) << batch;
    }
  });
}

TEST(Evaluate, SplitsWhatDoesNotFit) {
  in_world(2, [](std::shared_ptr<World> world) {
    const FormulaDataset data(
        75, {kFeatures}, kClasses, [](std::int64_t i) { return i % kClasses; }, value_of);
    const Task task(data.shape());
    Net net(kClasses);
    const EvaluationOptions options{.batch = 32, .keep_samples = true};
    const Evaluation all = evaluate(trainable(net), task, data, options, *world);
    for (const std::int64_t room : {31, 5, 1}) {
      std::int64_t refused = 0;
      // On one rank alone, which has less room than the other.
      const Trainable narrow{net.ptr(), [&](const TensorBatch& batch) {
                               if (world->rank() == 1 && batch.samples > room) {
                                 ++refused;
                                 throw MemoryError("no room");
                               }
                               return net->forward(batch.dense);
                             }};
      const Evaluation found = evaluate(narrow, task, data, options, *world);
      EXPECT_EQ(refused > 0, world->rank() == 1);
      EXPECT_EQ(found.evaluated, all.evaluated);
      EXPECT_EQ(found.confusion->counts(), all.confusion->counts());
      EXPECT_NEAR(found.metrics.at("loss"), all.metrics.at("loss"), 1e-6);
      for (std::size_t i = 0; i < all.samples.size(); ++i) {
        EXPECT_EQ(found.samples[i].prediction, all.samples[i].prediction);
        EXPECT_NEAR(found.samples[i].loss, all.samples[i].loss, 1e-5);
      }
    }
  });
}

// A user may have put parts of a model into evaluation mode by hand.
TEST(Evaluate, EndsOnAllRanksWhenOneWantsToStop) {
  in_world(3, [](std::shared_ptr<World> world) {
    SampleShape shape;
    shape.dense = {kFeatures};
    const OtherDataset data(100, shape);
    Net net(1);
    int asked = 0;
    EvaluationOptions options{.batch = 1};
    options.stop = [&] { return ++asked == 5 && world->rank() == 2; };
    const Evaluation none = evaluate(trainable(net), Task(shape), data, options, *world);
    EXPECT_TRUE(none.interrupted);
    EXPECT_EQ(asked, 5) << "of 34 rounds";
    EXPECT_TRUE(none.metrics.empty());
    // Asked in vain, and with fewer batches than ranks.
    for (const std::int64_t batch : {7, 60, 1000}) {
      options.batch = batch;
      asked = 100;
      const Evaluation whole = evaluate(trainable(net), Task(shape), data, options, *world);
      EXPECT_FALSE(whole.interrupted);
      expect_same_bits(
          whole, evaluate(trainable(net), Task(shape), data, {.batch = batch}, *world_of_one()));
    }
  });
}

TEST(Evaluate, LeavesEveryModuleInItsMode) {
  in_world(1, [](std::shared_ptr<World> world) {
    const FormulaDataset data(
        5, {kFeatures}, kClasses, [](std::int64_t) { return 0; }, value_of);
    for (const bool whole : {false, true}) {
      for (const bool part : {false, true}) {
        Net net(kClasses);
        net->train(whole);
        net->drop->train(part);
        evaluate(trainable(net), Task(data.shape()), data, {}, *world);
        EXPECT_EQ(net->is_training(), whole);
        EXPECT_EQ(net->linear->is_training(), whole);
        EXPECT_EQ(net->drop->is_training(), part);
      }
    }
  });
}

TEST(Evaluate, RefusesWhatCannotBe) {
  in_world(1, [](std::shared_ptr<World> world) {
    const FormulaDataset data(
        5, {kFeatures}, kClasses, [](std::int64_t) { return 0; }, value_of);
    const FormulaDataset nothing(
        0, {kFeatures}, kClasses, [](std::int64_t) { return 0; }, value_of);
    const Task task(data.shape());
    Net net(kClasses);
    EXPECT_THROW(evaluate(trainable(net), task, data, {.batch = 0}, *world), ConfigError);
    EXPECT_THROW(evaluate(trainable(net), task, nothing, {}, *world), ConfigError);
    const Trainable full{net.ptr(),
                         [](const TensorBatch&) -> Tensor { throw MemoryError("no room at all"); }};
    net->train();
    EXPECT_EQ(message_of<MemoryError>([&] { evaluate(full, task, data, {}, *world); }),
              "no room at all");
    EXPECT_TRUE(net->is_training());
    EXPECT_THROW(Task(data.shape(), {1, 2}), ConfigError);
    const Trainable broken{net.ptr(),
                           [](const TensorBatch&) -> Tensor { throw DataError("f", 3, "bad"); }};
    EXPECT_THROW(evaluate(broken, task, data, {}, *world), DataError);
  });
}

}  // namespace
}  // namespace trireme::evaluation_test
