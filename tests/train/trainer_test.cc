// The training loop with a model and data of the user's own.

#include "trireme/train/trainer.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "data/formula_dataset.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/settings/settings_table.h"
#include "trireme/tensor/memory_limit.h"
#include "trireme/train/half_speed.h"
#include "trireme/train/training_report.h"
#include "trireme/train/weights.h"

namespace trireme::trainer_test {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::fork_ranks;
using testing::FormulaDataset;
using testing::message_of;

constexpr std::int64_t kFeatures = 6;
constexpr std::int64_t kClasses = 3;

float value_of(std::int64_t sample, std::int64_t place) {
  const double noise = std::sin(0.7 * static_cast<double>(sample * 13 + place * 5));
  return static_cast<float>(noise + (place == sample % kClasses ? 1.5 : 0));
}

std::int64_t label_of(std::int64_t sample) {
  return sample % kClasses;
}

std::shared_ptr<const Dataset> dataset(std::int64_t size) {
  return std::make_shared<FormulaDataset>(
      size, std::vector<std::int64_t>{kFeatures}, kClasses, label_of, value_of);
}

Parts parts(std::int64_t train = 120, std::int64_t held_out = 30) {
  return {dataset(train), held_out > 0 ? dataset(held_out) : nullptr};
}

struct NetImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Dropout drop{nullptr};
  explicit NetImpl(double dropout) {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(kFeatures, 8));
    norm = register_module("norm", nn::BatchNorm1d(8));
    drop = register_module("drop", nn::Dropout(dropout));
    second = register_module("second", nn::Linear(8, kClasses));
  }
  Tensor forward(const Tensor& x) {
    return second->forward(drop->forward(at::relu(norm->forward(first->forward(x)))));
  }
};
TORCH_MODULE(Net);

struct LinearNetImpl : nn::Module {
  nn::Linear linear{nullptr};
  LinearNetImpl() {
    torch::manual_seed(3);
    linear = register_module("linear", nn::Linear(kFeatures, kClasses));
  }
  Tensor forward(const Tensor& x) { return linear->forward(x); }
};
TORCH_MODULE(LinearNet);

template <class Holder>
Trainable trainable(const Holder& net) {
  return {net.ptr(),
          [net = net.ptr()](const TensorBatch& batch) { return net->forward(batch.dense); }};
}

std::string bits_of(const nn::Module& model) {
  std::string bits;
  for (const auto& list : {model.parameters(), model.buffers()}) {
    for (const Tensor& each : list) {
      const Tensor values = each.detach().clone().contiguous();
      bits.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    }
  }
  return bits;
}

class Recorder final : public TrainObserver {
 public:
  void step(const StepReport& report) override { reports.push_back(report); }
  void evaluated(std::int64_t step, const Evaluation& evaluation, bool best) override {
    evaluations.push_back({step, evaluation.metrics.at("loss"), best});
  }
  void values(const std::string& tag, std::int64_t step, std::span<const float>) override {
    shown.emplace_back(tag, step);
  }
  void message(const std::string& text) override { messages.push_back(text); }
  void samples(const std::vector<std::int64_t>& samples) override { taken.push_back(samples); }
  void weights(const std::string& which, const nn::Module& module) override {
    kept.emplace_back(which, bits_of(module));
  }

  std::vector<double> losses() const {
    std::vector<double> all;
    for (const StepReport& report : reports) {
      all.push_back(report.loss);
    }
    return all;
  }
  bool said(const std::string& part) const {
    for (const std::string& text : messages) {
      if (text.find(part) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  struct Evaluated {
    std::int64_t step;
    double loss;
    bool best;
  };
  std::vector<StepReport> reports;
  std::vector<Evaluated> evaluations;
  std::vector<std::pair<std::string, std::int64_t>> shown;
  std::vector<std::string> messages;
  std::vector<std::vector<std::int64_t>> taken;
  std::vector<std::pair<std::string, std::string>> kept;
};

TrainSettings settings_of(std::int64_t steps, int ranks) {
  TrainSettings settings;
  settings.model = "mine";
  settings.data = "mine";
  settings.steps = steps;
  settings.batch = 12;
  settings.micro_batch = "4";
  settings.schedule = ScheduleKind::kConstant;
  settings.lr = 1e-2;
  settings.ranks = ranks;
  settings.data_threads = 1;
  settings.memory_limit = "1GB";
  return settings;
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

TEST(Train, GivesTheSameBitsForAnyWorld) {
  for (const int size : {1, 2, 3}) {
    in_world(size, [size](std::shared_ptr<World> world) {
      TrainSettings settings = settings_of(15, size);
      settings.loss_weights = {1, 2.5, 0.25};
      settings.clip_norm = 1;
      settings.noise = 0.1;
      settings.eval_every = 5;
      Net alone(0.3);
      Recorder expected;
      const TrainResult reference =
          train(resolve(settings), trainable(alone), parts(), world_of_one(), &expected);
      for (const int zero : {0, 1, 2, 3}) {
        SCOPED_TRACE(detail::concat(size, " ranks, stage ", zero));
        settings.zero = zero;
        settings.balance = zero == 2 ? Balance::kSpeeds : Balance::kEqual;
        settings.speeds = zero == 2 ? std::vector<double>{1, 3, 0.5} : std::vector<double>{};
        settings.speeds.resize(zero == 2 ? static_cast<std::size_t>(size) : 0);
        Net net(0.3);
        Recorder recorder;
        const TrainResult result =
            train(resolve(settings), trainable(net), parts(), world, &recorder);
        EXPECT_EQ(recorder.losses(), expected.losses());
        EXPECT_EQ(recorder.kept, expected.kept);
        EXPECT_EQ(result.evaluation.metrics, reference.evaluation.metrics);
        EXPECT_EQ(result.best_step, reference.best_step);
        EXPECT_EQ(result.steps, 15);
        EXPECT_EQ(recorder.reports.size(), 15U);
        for (std::size_t i = 0; i < recorder.reports.size(); ++i) {
          EXPECT_EQ(recorder.reports[i].step, static_cast<std::int64_t>(i) + 1);
          EXPECT_EQ(recorder.reports[i].samples, 12);
          EXPECT_EQ(recorder.reports[i].gradient_norm, expected.reports[i].gradient_norm);
          EXPECT_EQ(recorder.reports[i].epoch, 12.0 * (static_cast<double>(i) + 1) / 120);
        }
        std::vector<std::int64_t> at;
        for (const auto& each : recorder.evaluations) {
          at.push_back(each.step);
        }
        EXPECT_EQ(at, (std::vector<std::int64_t>{5, 10, 15}));
        EXPECT_LT(recorder.losses().back(), recorder.losses().front());
      }
    });
  }
}

// The weighted mean of a step is that of all its samples, whoever computes them in what parts.
TEST(Train, ClassWeightsDoNotDependOnMicroBatches) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const std::vector<double>& weights :
         {std::vector<double>{1, 2.5, 0.25}, std::vector<double>{0, 0, 1}}) {
      std::vector<std::vector<double>> losses;
      std::vector<std::int64_t> taken;
      for (const char* micro_batch : {"12", "6", "3", "1"}) {
        TrainSettings settings = settings_of(6, 2);
        settings.micro_batch = micro_batch;
        settings.loss_weights = weights;
        settings.optimizer = "sgd";
        settings.record_samples = true;
        LinearNet net;
        Recorder recorder;
        train(resolve(settings), trainable(net), parts(120, 0), world, &recorder);
        losses.push_back(recorder.losses());
        taken = recorder.taken[0];
        for (std::size_t i = 0; i < losses[0].size(); ++i) {
          EXPECT_NEAR(losses.back()[i], losses[0][i], 1e-5) << micro_batch << " step " << i;
        }
      }
      // What torch says of the first step's batch.
      LinearNet net;
      Tensor x = at::empty({12, kFeatures});
      std::vector<std::int64_t> labels;
      for (std::int64_t i = 0; i < 12; ++i) {
        const std::int64_t sample = taken[static_cast<std::size_t>(i)];
        labels.push_back(label_of(sample));
        for (std::int64_t place = 0; place < kFeatures; ++place) {
          x[i][place] = value_of(sample, place);
        }
      }
      namespace F = nn::functional;
      const double expected =
          F::cross_entropy(net->forward(x),
                           torch::tensor(labels),
                           F::CrossEntropyFuncOptions().weight(
                               torch::tensor(weights, at::kDouble).to(at::kFloat)))
              .item<double>();
      EXPECT_NEAR(losses[0][0], expected, 1e-5);
    }
  });
}

TEST(Train, StopsWhenOneRankIsAsked) {
  in_world(3, [](std::shared_ptr<World> world) {
    Net net(0);
    Recorder recorder;
    int asked = 0;
    const TrainResult result = train(resolve(settings_of(50, 3)),
                                     trainable(net),
                                     parts(),
                                     world,
                                     world->rank() == 0 ? &recorder : nullptr,
                                     [&] { return world->rank() == 2 && ++asked == 7; });
    EXPECT_EQ(result.status, TrainResult::Status::kInterrupted);
    EXPECT_EQ(result.steps, 7);
    EXPECT_TRUE(result.evaluation.metrics.empty());
    EXPECT_EQ(recorder.kept.size(), world->rank() == 0 ? 1U : 0U);  // the weights are kept
  });
}

TEST(Train, StopsEarlyWhereNothingImproves) {
  in_world(2, [](std::shared_ptr<World> world) {
    TrainSettings settings = settings_of(50, 2);
    settings.lr = 1e-12;
    settings.optimizer = "sgd";
    settings.eval_every = 2;
    settings.early_stop = 3;
    settings.best = "accuracy";
    LinearNet net;
    Recorder recorder;
    const TrainResult result = train(resolve(settings), trainable(net), parts(), world, &recorder);
    EXPECT_EQ(result.status, TrainResult::Status::kStoppedEarly);
    EXPECT_EQ(result.steps, 8);  // the first is the best, and three more
    EXPECT_EQ(result.best_step, 2);
    ASSERT_EQ(recorder.evaluations.size(), 4U);  // each once
    EXPECT_TRUE(recorder.evaluations[0].best);
    EXPECT_FALSE(recorder.evaluations[3].best);
    EXPECT_EQ(result.evaluation.samples.size(), 30U);  // of the last weights
    int said = 0;
    for (const std::string& message : recorder.messages) {
      said += message.find("stopping: accuracy has not improved in 3") == 0 ? 1 : 0;
    }
    EXPECT_EQ(said, 1);
  });
}

TEST(Train, APlateauLowersTheRate) {
  in_world(2, [](std::shared_ptr<World> world) {
    TrainSettings settings = settings_of(12, 2);
    settings.lr = 1e-12;
    settings.optimizer = "sgd";
    settings.schedule = ScheduleKind::kPlateau;
    settings.plateau_patience = 1;
    settings.gamma = 0.5;
    settings.eval_every = 2;
    LinearNet net;
    Recorder recorder;
    train(resolve(settings), trainable(net), parts(), world, &recorder);
    // Evaluations after steps 2, 4, 6, ...: the first is the best, one is forgiven, the next not.
    std::vector<double> rates;
    for (const StepReport& report : recorder.reports) {
      rates.push_back(report.learning_rate * 1e12);
    }
    ASSERT_EQ(rates.size(), 12U);
    for (std::size_t i = 0; i < rates.size(); ++i) {
      EXPECT_NEAR(rates[i], i < 6 ? 1 : i < 10 ? 0.5 : 0.25, 1e-9) << "step " << i + 1;
    }
  });
}

// A factor of 1 or 0 is one that steps may have, and a plateau may not.
TEST(Train, TakesAnyFactorForSchedulesThatAreNoPlateau) {
  in_world(1, [](std::shared_ptr<World> world) {
    for (const double gamma : {0.0, 1.0}) {
      TrainSettings settings = settings_of(6, 1);
      settings.schedule = ScheduleKind::kStep;
      settings.step_every = 3;
      settings.gamma = gamma;
      LinearNet net;
      Recorder recorder;
      train(resolve(settings), trainable(net), parts(), world, &recorder);
      ASSERT_EQ(recorder.reports.size(), 6U);
      EXPECT_EQ(recorder.reports[5].learning_rate, 1e-2 * gamma);
      settings.schedule = ScheduleKind::kPlateau;
      EXPECT_THROW(train(resolve(settings), trainable(net), parts(), world), ConfigError);
    }
  });
}

// A rank that has less room than the others: micro-batches become smaller for all of them.
TEST(Train, GoesOnWithSmallerMicroBatches) {
  in_world(3, [](std::shared_ptr<World> world) {
    for (const int zero : {0, 2, 3}) {
      for (const bool in_backward : {false, true}) {
        SCOPED_TRACE(detail::concat("stage ", zero, in_backward ? " backward" : " forward"));
        std::vector<std::vector<double>> losses;
        for (const bool fails : {false, true}) {
          TrainSettings settings = settings_of(6, 3);
          settings.zero = zero;
          settings.optimizer = "sgd";
          settings.micro_batch = "6";
          settings.histogram_every = 1;
          settings.record_samples = true;
          settings.batch_schedule = {"3:18", "5:8"};
          settings.micro_batch = fails ? "auto" : "2";
          LinearNet net;
          int calls = 0;
          const Trainable model{net.ptr(), [&, net = net.ptr()](const TensorBatch& batch) {
                                  Tensor scores = net->forward(batch.dense);
                                  calls += world->rank() == 1 && net->is_training() ? 1 : 0;
                                  // In the third step there is no room for two any more.
                                  if (fails && world->rank() == 1 && net->is_training() &&
                                      batch.samples > (calls > 4 ? 1 : 2)) {
                                    if (!in_backward) {
                                      throw MemoryError("no room");
                                    }
                                    scores.register_hook([](const Tensor&) -> Tensor {
                                      throw MemoryError("no room");
                                    });
                                  }
                                  return scores;
                                }};
          Recorder recorder;
          const TrainResult result =
              train(resolve(settings), model, parts(120, 0), world, &recorder);
          losses.push_back(recorder.losses());
          ASSERT_EQ(recorder.taken.size(), 6U);
          EXPECT_EQ(recorder.taken[2].size(), 12U);
          EXPECT_EQ(recorder.taken[3].size(), 18U);
          EXPECT_EQ(recorder.taken[5].size(), 8U);
          // Gradients and parameters of each step, once.
          EXPECT_EQ(recorder.shown.size(), 6U * 4);
          EXPECT_EQ(recorder.shown.front(),
                    (std::pair<std::string, std::int64_t>("gradients/linear.weight", 1)));
          if (fails) {
            EXPECT_TRUE(recorder.said("micro-batches of 2 fit"));
            EXPECT_TRUE(recorder.said("rank 1 gave up step"));
            EXPECT_EQ(result.micro_batch, 1);
          }
        }
        for (std::size_t i = 0; i < losses[0].size(); ++i) {
          EXPECT_NEAR(losses[0][i], losses[1][i], 1e-5) << "step " << i + 1;
        }
      }
    }
  });
}

TEST(Train, SaysWhenNotEvenOneSampleFits) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const char* micro_batch : {"4", "auto"}) {
      TrainSettings settings = settings_of(6, 2);
      settings.micro_batch = micro_batch;
      LinearNet net;
      const Trainable model{net.ptr(), [&, net = net.ptr()](const TensorBatch& batch) {
                              if (world->rank() == 1) {
                                throw MemoryError("no room");
                              }
                              return net->forward(batch.dense);
                            }};
      const std::string message =
          message_of<MemoryError>([&] { train(resolve(settings), model, parts(), world); });
      EXPECT_NE(message.find("not even one sample fits"), std::string::npos) << message;
    }
    EXPECT_EQ(MemoryLimit::limit_bytes(), 0U);  // as it was before
  });
}

// LibTorch's matrix product on arm64, and that of bfloat16 elsewhere, catches what the allocator
// throws, says nothing, and uses another kernel from then on.
TEST(Train, NoticesMemoryErrorsThatOperatorsSwallow) {
  in_world(2, [](std::shared_ptr<World> world) {
    const auto run = [&](const char* micro_batch, bool swallows, Recorder& recorder) {
      TrainSettings settings = settings_of(4, 2);
      settings.micro_batch = micro_batch;
      LinearNet net;
      bool first = true;
      const auto scores = [&, net = net.ptr()](const TensorBatch& batch) {
        if (swallows && world->rank() == 1 && std::exchange(first, false)) {
          try {
            at::empty({std::int64_t{1} << 60}, at::kByte);
            ADD_FAILURE() << "an exabyte";
          } catch (const std::exception&) {
            at::globalContext().setUserEnabledMkldnn(false);
          }
        }
        const Tensor result = net->forward(batch.dense);
        return at::globalContext().userEnabledMkldnn() ? result : result * 1.001;  // other bits
      };
      const TrainResult result =
          train(resolve(settings), {net.ptr(), scores}, parts(), world, &recorder);
      EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
      return result.micro_batch;
    };
    Recorder calm;
    EXPECT_EQ(run("4", false, calm), 4);
    Recorder recorder;
    EXPECT_EQ(run("6", true, recorder), 4) << "given up and tried again";
    EXPECT_TRUE(recorder.said("rank 1 gave up step 1: a tensor of 1152921504606846976 bytes"));
    EXPECT_EQ(recorder.losses(), calm.losses());
    EXPECT_EQ(recorder.kept, calm.kept);
  });
}

TEST(Train, RefusesWhatIsNotFinite) {
  in_world(2, [](std::shared_ptr<World> world) {
    LinearNet net;
    int calls = 0;
    const Trainable model{net.ptr(), [&, net = net.ptr()](const TensorBatch& batch) {
                            ++calls;
                            const Tensor scores = net->forward(batch.dense);
                            return world->rank() == 1 && calls == 3 ? scores / 0.0 : scores;
                          }};
    try {
      train(resolve(settings_of(9, 2)), model, parts(), world);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const GradientError& error) {
      EXPECT_EQ(error.rank(), 1);
    }
  });
}

// However the micro-batches of a step are dealt, they have the numbers of one process.
TEST(Train, NamesTheMicroBatchWhoseLossIsNotFinite) {
  const auto message_with = [](const std::vector<double>& speeds,
                               const std::shared_ptr<World>& world) {
    LinearNet net;
    // One sample of the first step cannot be told from its scores; its gradients are finite.
    const Trainable model{net.ptr(), [net = net.ptr()](const TensorBatch& batch) {
                            Tensor scores = net->forward(batch.dense);
                            for (std::size_t i = 0; i < batch.ids.size(); ++i) {
                              if (batch.ids[i] == 17) {
                                const auto row = static_cast<std::int64_t>(i);
                                Tensor out_of_reach = torch::zeros_like(scores.detach());
                                out_of_reach[row][batch.labels[row].item<std::int64_t>()] =
                                    -std::numeric_limits<double>::infinity();
                                scores = scores + out_of_reach;
                              }
                            }
                            return scores;
                          }};
    TrainSettings settings = settings_of(1, world->size());
    settings.batch = 96;
    settings.micro_batch = "16";
    settings.balance = speeds.empty() ? Balance::kEqual : Balance::kSpeeds;
    settings.speeds = speeds;
    const std::string message =
        message_of<GradientError>([&] { train(resolve(settings), model, parts(96, 0), world); });
    return message.substr(0, message.find(" on rank"));
  };
  const std::string expected = message_with({}, world_of_one());
  EXPECT_NE(expected.find("the loss of micro-batch "), std::string::npos) << expected;
  for (const std::vector<double>& speeds :
       {std::vector<double>{1, 1}, {1, 3}, {3, 1}, {1, 5, 2}, {2, 1, 5}}) {
    in_world(static_cast<int>(speeds.size()), [&](const std::shared_ptr<World>& world) {
      EXPECT_EQ(message_with(speeds, world), expected);
    });
  }
}

// What happens on one rank alone ends the others, too.
TEST(Train, AnObserverThatFailsEndsEveryRank) {
  class Failing final : public TrainObserver {
   public:
    void step(const StepReport& report) override {
      if (report.step == 3) {
        throw Error("the disk is full");
      }
    }
    void evaluated(std::int64_t, const Evaluation&, bool) override {}
    void values(const std::string&, std::int64_t, std::span<const float>) override {}
    void message(const std::string&) override {}
    void samples(const std::vector<std::int64_t>&) override {}
    void weights(const std::string&, const nn::Module&) override {}
  };
  in_world(2, [](std::shared_ptr<World> world) {
    Net net(0);
    Failing observer;
    const bool leads = world->rank() == 0;
    try {
      train(
          resolve(settings_of(20, 2)), trainable(net), parts(), world, leads ? &observer : nullptr);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError&) {
      EXPECT_FALSE(leads);
    } catch (const Error& error) {
      EXPECT_TRUE(leads);
      EXPECT_STREQ(error.what(), "the disk is full");
    }
  });
}

TEST(Train, RefusesABatchThatIsLargerThanTheDataBeforeAnythingIsDone) {
  in_world(2, [](std::shared_ptr<World> world) {
    LinearNet net;
    Recorder recorder;
    TrainSettings settings = settings_of(3, 2);
    const auto refusal = [&](std::int64_t samples) {
      return message_of<ConfigError>(
          [&] { train(resolve(settings), trainable(net), parts(samples), world, &recorder); });
    };
    EXPECT_NE(refusal(11).find("the 11 samples to train on, found 12"), std::string::npos);
    EXPECT_NE(refusal(11).find("--batch 8 (a multiple of the micro-batch of 4) or less"),
              std::string::npos)
        << "with micro-batches of 4";
    EXPECT_NE(refusal(1).find("the 1 sample to train on"), std::string::npos);
    settings.batch_schedule = {"2:24"};
    EXPECT_NE(refusal(23).find("found 24 from step 2 on"), std::string::npos);
    EXPECT_TRUE(recorder.reports.empty());
    train(resolve(settings), trainable(net), parts(24), world, &recorder);
    EXPECT_EQ(recorder.reports.size(), 3U);
  });
}

// The same path may lead to another file on another machine.
TEST(Train, RefusesDataThatIsNotTheSameOnEveryRank) {
  in_world(3, [](std::shared_ptr<World> world) {
    const int rank = world->rank();
    const auto refusal = [&](const Parts& data) {
      return message_of<ConfigError>(
          [&] { train(resolve(settings_of(3, 3)), trainable(LinearNet()), data, world); });
    };
    const std::string expected = "data: what was read differs between ranks: rank 0 has ";
    const std::string more = refusal(parts(rank == 1 ? 132 : 120));
    EXPECT_NE(
        more.find(expected + "120 samples to train on and 30 to evaluate where rank 1 has 132 "
                             "samples to train on and 30 to evaluate: "),
        std::string::npos)
        << more;
    const std::string held_out = refusal(parts(120, rank == 2 ? 0 : 30));
    EXPECT_NE(held_out.find("where rank 2 has 120 samples to train on and 0"), std::string::npos)
        << held_out;
    // Not the refusal of a batch, which that rank alone would have.
    const std::string few = refusal(parts(rank == 1 ? 5 : 120));
    EXPECT_NE(few.find("where rank 1 has 5 samples to train on and 30"), std::string::npos) << few;
    const auto other = std::make_shared<FormulaDataset>(
        120,
        std::vector<std::int64_t>{kFeatures},
        kClasses,
        label_of,
        [rank](std::int64_t sample, std::int64_t place) {
          return value_of(sample, place) + (rank == 2 && sample == 60 && place == 4 ? 1.0F : 0.0F);
        });
    const std::string values = refusal({other, dataset(30)});
    EXPECT_NE(values.find(expected + "samples with the checksum "), std::string::npos) << values;
    EXPECT_NE(values.find("where rank 2 has samples with the checksum "), std::string::npos)
        << values;
    EXPECT_EQ(train(resolve(settings_of(3, 3)), trainable(LinearNet()), parts(), world).steps, 3);
  });
}

TEST(Train, PartsThatAUserHasFrozenStaySo) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const int zero : {0, 3}) {
      TrainSettings settings = settings_of(6, 2);
      settings.zero = zero;
      settings.eval_every = 2;
      Net net(0);
      net->norm->eval();
      train(resolve(settings), trainable(net), parts(), world);
      EXPECT_TRUE(net->is_training());
      EXPECT_FALSE(net->norm->is_training());
      EXPECT_TRUE(at::equal(net->norm->running_mean, at::zeros({8})));
      EXPECT_TRUE(at::equal(net->norm->running_var, at::ones({8})));
      EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 0);
      // One that comes as a whole from an evaluation is trained as a whole.
      Net evaluated(0);
      evaluated->eval();
      train(resolve(settings), trainable(evaluated), parts(), world);
      EXPECT_TRUE(evaluated->norm->is_training());
      EXPECT_FALSE(at::equal(evaluated->norm->running_mean, at::zeros({8})));
    }
  });
}

// Also running statistics, which are looked after by more than the engine.
TEST(Train, StartsFromWeightsAsIfTheModelHadThem) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/source.safetensors";
  in_world(2, [&](std::shared_ptr<World> world) {
    if (world->rank() == 0) {
      const at::NoGradGuard no_grad;
      Net source(0);
      for (const auto& list : {source->parameters(), source->buffers()}) {
        for (const Tensor& each : list) {
          each.add_(2);
        }
      }
      save_weights(path, *source);
    }
    world->barrier().wait();
    for (const int zero : {0, 3}) {
      TrainSettings settings = settings_of(3, 2);
      settings.zero = zero;
      settings.ema_decay = 0.5;
      const auto trained = [&](const Net& net, Recorder& recorder) {
        TrainObserver* observer = world->rank() == 0 ? &recorder : nullptr;
        train(resolve(settings), trainable(net), parts(), world, observer);
        EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 2 + 3 * 3);
        return bits_of(*net);
      };
      Net had(0);
      load_weights(path, *had);
      Recorder expected;
      const std::string bits = trained(had, expected);
      settings.weights_from = path;
      Recorder found;
      EXPECT_EQ(trained(Net(0), found), bits) << "stage " << zero;
      EXPECT_EQ(found.losses(), expected.losses());
      EXPECT_EQ(found.kept, expected.kept) << "stage " << zero;
    }
  });
}

TEST(Train, WeightsMayTakeMoreMemoryToLoadThanStepsMay) {
  const testing::TemporaryFolder folder;
  in_world(1, [&](std::shared_ptr<World> world) {
    constexpr std::int64_t kNumel = 1 << 20;
    const auto with_table = [] {
      LinearNet net;
      net->register_parameter("table", at::ones({kNumel}), /*requires_grad=*/false);
      return net;
    };
    TrainSettings settings = settings_of(3, 1);
    settings.weights_from = folder.path() + "/source.safetensors";
    settings.memory_limit = "1MB";
    save_weights(settings.weights_from, *with_table());
    const TrainResult result = train(resolve(settings), trainable(with_table()), parts(), world);
    EXPECT_EQ(result.steps, 3);
    EXPECT_LT(result.tensor_bytes, kNumel);
  });
}

// Of settings that were changed behind resolve().
TEST(Train, RefusesBatchesThatAreNoMultipleOfTheMicroBatch) {
  in_world(1, [](std::shared_ptr<World> world) {
    TrainSettings settings = resolve(settings_of(3, 1));
    Recorder recorder;
    const auto refusal = [&] {
      return message_of<ConfigError>(
          [&] { train(settings, trainable(LinearNet()), parts(), world, &recorder); });
    };
    settings.batch = 10;
    EXPECT_EQ(refusal().find("batch: expected a multiple of micro_batch = 4, found 10"), 0U);
    settings.batch = 12;
    settings.batch_schedule = {"2:18"};
    EXPECT_EQ(refusal().find("batch_schedule: expected a multiple of micro_batch = 4, found 18"),
              0U);
    settings.micro_batch = "0";
    EXPECT_EQ(refusal().find("micro_batch: expected a number of 1 or more, found 0"), 0U);
    EXPECT_TRUE(recorder.reports.empty());
  });
}

TEST(Train, SharesOfTheDataNeedMicroBatchesOfOneSize) {
  in_world(1, [](std::shared_ptr<World> world) {
    TrainSettings settings = settings_of(4, 1);
    settings.partition = Partition::kHash;
    settings.shares = 3;
    LinearNet net;
    train(resolve(settings), trainable(net), parts(), world);
    settings.micro_batch = "auto";
    EXPECT_THROW(train(resolve(settings), trainable(LinearNet()), parts(), world), ConfigError);
    settings.micro_batch = "4";
    settings.batch_schedule = {"2:24"};
    train(resolve(settings), trainable(LinearNet()), parts(), world);
    settings.batch_schedule = {"2:16"};
    EXPECT_THROW(train(resolve(settings), trainable(LinearNet()), parts(), world), ConfigError);
  });
}

TEST(Train, SkippedStepsHaveNoNorm) {
  in_world(2, [](std::shared_ptr<World> world) {
    TrainSettings settings = settings_of(6, 2);
    settings.precision = TrainPrecision::kFloat16;
    settings.loss_scale_initial = 64;
    settings.clip_norm = 1;
    settings.micro_batch = "6";
    LinearNet net;
    int calls = 0;
    const Trainable model{net.ptr(), [&, net = net.ptr()](const TensorBatch& batch) {
                            const Tensor scores = net->forward(batch.dense);
                            return ++calls == 4 && world->rank() == 1 ? scores * 1e6 : scores;
                          }};
    Recorder recorder;
    train(resolve(settings), model, parts(120, 0), world, &recorder);
    ASSERT_EQ(recorder.reports.size(), 6U);
    for (const StepReport& report : recorder.reports) {
      EXPECT_EQ(report.skipped, report.step == 4);
      EXPECT_EQ(std::isfinite(report.gradient_norm), report.step != 4) << "step " << report.step;
    }
  });
}

// A metric that is not a number is worse than any that is.
TEST(Train, ANumberIsBetterThanNone) {
  in_world(2, [](std::shared_ptr<World> world) {
    TrainSettings settings = settings_of(8, 2);
    settings.eval_every = 2;
    LinearNet net;
    Recorder recorder;
    const Trainable model{net.ptr(), [&, net = net.ptr()](const TensorBatch& batch) {
                            const Tensor scores = net->forward(batch.dense);
                            const bool first = !net->is_training() && recorder.evaluations.empty();
                            return first ? scores * NAN : scores;
                          }};
    const TrainResult result = train(resolve(settings), model, parts(), world, &recorder);
    ASSERT_EQ(recorder.evaluations.size(), 4U);
    EXPECT_TRUE(std::isnan(recorder.evaluations[0].loss));
    EXPECT_FALSE(std::isnan(recorder.evaluations[3].loss));
    EXPECT_TRUE(recorder.evaluations[1].best);
    EXPECT_FALSE(std::isnan(result.best.at("loss")));
    EXPECT_GT(result.best_step, 2);
  });
}

// One layer under two names.
struct TiedImpl : nn::Module {
  nn::Linear one{nullptr}, same{nullptr}, head{nullptr};
  TiedImpl() {
    torch::manual_seed(3);
    one = register_module("one", nn::Linear(kFeatures, kFeatures));
    same = register_module("same", one);
    head = register_module("head", nn::Linear(kFeatures, kClasses));
  }
  Tensor forward(const Tensor& x) {
    return head->forward(at::tanh(same->forward(at::tanh(one->forward(x)))));
  }
};
TORCH_MODULE(Tied);

TEST(Train, KeepsTheAverageBesideTheWeights) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const int zero : {0, 3}) {
      TrainSettings settings = settings_of(5, 2);
      settings.ema_decay = 0.5;
      settings.zero = zero;
      Tied net;
      Recorder recorder;
      train(resolve(settings), trainable(net), parts(120, 0), world, &recorder);
      ASSERT_EQ(recorder.kept.size(), 2U);
      EXPECT_EQ(recorder.kept[0].first, "model");
      EXPECT_EQ(recorder.kept[1].first, "average");
      EXPECT_NE(recorder.kept[0].second, recorder.kept[1].second);
      if (zero == 0) {  // stage 3 has taken its parameters with it
        EXPECT_EQ(bits_of(*net), recorder.kept[0].second);
      }
    }
  });
}

TEST(Train, RecomputesInEveryPrecision) {
  in_world(2, [](std::shared_ptr<World> world) {
    for (const auto precision :
         {TrainPrecision::kFloat32, TrainPrecision::kAutocast, TrainPrecision::kBFloat16}) {
      std::vector<std::vector<double>> losses;
      for (const bool recompute : {false, true}) {
        TrainSettings settings = settings_of(5, 2);
        settings.model = "mlp";
        settings.hidden = {16, 8};
        settings.dropout = 0.2;
        settings.precision = precision;
        settings.recompute = recompute;
        settings.zero = 3;
        const TrainSettings resolved = resolve(settings);
        const Parts data = parts(120, 0);
        Recorder recorder;
        train(resolved, make_model(resolved, data.train->shape()), data, world, &recorder);
        losses.push_back(recorder.losses());
      }
      EXPECT_EQ(losses[0].size(), 5U);
      EXPECT_EQ(losses[0], losses[1]) << static_cast<int>(precision);
    }
  });
}

struct SparseNetImpl : nn::Module {
  nn::Embedding table{nullptr};
  nn::Linear hidden{nullptr}, head{nullptr};
  SparseNetImpl() {
    torch::manual_seed(5);
    table = register_module("table", nn::Embedding(nn::EmbeddingOptions(400, 32).sparse(true)));
    hidden = register_module("hidden", nn::Linear(32, 64));
    head = register_module("head", nn::Linear(64, 3));
  }
  Tensor forward(const Tensor& ids) {
    return head->forward(at::tanh(hidden->forward(table->forward(ids))));
  }
};
TORCH_MODULE(SparseNet);

// Whatever allocation it is that one rank is refused, the step is given up by all and can be tried
// again.
TEST(GivingUp, WhereverMemoryRunsOut) {
  in_world(3, [](std::shared_ptr<World> world) {
    for (const SumOrder order : {SumOrder::kChained, SumOrder::kLocalFirst}) {
      for (int mode = 0; mode < 8; ++mode) {
        const int zero = mode / 2;
        const bool refuses = mode % 2 == 1;  // inside the operator, or notes for its end
        SCOPED_TRACE(detail::concat("stage ",
                                    zero,
                                    order == SumOrder::kChained ? "" : ", local first",
                                    refuses ? ", refused" : ", noted"));
        EngineOptions options{.zero = zero, .accumulate = 2, .sum_order = order};
        options.unit_bytes = 4096;
        options.bucket_bytes = 1024;
        SparseNet calm_net;
        SparseNet net;
        Engine calm(calm_net, Sgd({.lr = 0.1}), options, world);
        Engine engine(net, Sgd({.lr = 0.1}), options, world);
        const Tensor ids = at::arange(400);
        const auto attempt = [&](Engine<SparseNetImpl>& which, std::int64_t room) {
          for (std::int64_t k = 0; k < 2; ++k) {
            std::string failure;
            try {
              if (room > 0 && world->rank() == 1) {
                const std::uint64_t most =
                    MemoryLimit::used_bytes() + static_cast<std::uint64_t>(room);
                MemoryLimit::set(most, refuses ? most : 0);
              }
              which.backward((which.forward(ids + 0) * static_cast<double>(k + 1 + world->rank()))
                                 .square()
                                 .mean());
            } catch (const MemoryError& error) {
              failure = error.what();
            }
            if (!failure.empty()) {
              which.give_up(failure);
            }
            which.step();
          }
        };
        MemoryLimit::set(0);
        int given_up = 0;
        int taken = 0;
        for (std::int64_t room = 16 << 10; room < (1 << 20) && taken == 0; room += 10 << 10) {
          try {
            attempt(engine, room);
            ++taken;
          } catch (const StepGivenUp&) {
            ++given_up;
          }
          MemoryLimit::set(0);
        }
        EXPECT_GT(given_up, 3);
        EXPECT_EQ(taken, 1);
        attempt(calm, 0);
        for (const auto& item : calm_net->named_parameters()) {
          EXPECT_TRUE(torch::equal(item.value(), *net->named_parameters().find(item.key())));
        }
      }
    }
  });
}

TEST(CrossValidate, HoldsEverySampleOutOnce) {
  in_world(2, [](std::shared_ptr<World> world) {
    TrainSettings settings = settings_of(8, 2);
    settings.model = "mlp";
    settings.hidden = {8};
    settings.folds = 4;
    std::vector<int> folds;
    const auto observer = [&](int fold, const Trainable&) -> std::shared_ptr<TrainObserver> {
      folds.push_back(fold);
      return nullptr;
    };
    const std::vector<TrainResult> results =
        cross_validate(resolve(settings), dataset(50), observer, world);
    ASSERT_EQ(results.size(), 4U);
    EXPECT_EQ(folds, (std::vector<int>{0, 1, 2, 3}));
    std::int64_t evaluated = 0;
    double loss = 0;
    for (const TrainResult& result : results) {
      evaluated += result.evaluation.evaluated;
      loss += result.evaluation.metrics.at("loss");
    }
    EXPECT_EQ(evaluated, 50);

    // One that was interrupted has nothing to say about the mean.
    std::vector<TrainResult> interrupted = {results[0], results[1], TrainResult{}};
    interrupted[2].status = TrainResult::Status::kInterrupted;
    const std::string json = folds_json(settings, interrupted);
    const double mean =
        (results[0].evaluation.metrics.at("loss") + results[1].evaluation.metrics.at("loss")) / 2;
    const auto at = json.find("\"loss\": ", json.find("\"metrics\""));
    ASSERT_NE(at, std::string::npos);
    EXPECT_NEAR(std::stod(json.substr(at + 8)), mean, 1e-9);
  });
}

TEST(SlowPrecision, IsMeasuredAndSaidOnce) {
  TrainSettings settings;
  settings.precision = TrainPrecision::kFloat32;
  EXPECT_EQ(slowdown_of_precision(settings.precision), 1);
  for (const auto precision :
       {TrainPrecision::kBFloat16, TrainPrecision::kFloat16, TrainPrecision::kAutocast}) {
    settings.precision = precision;
    const std::string name = value_text("precision", settings);
    EXPECT_GT(slowdown_of_precision(settings.precision), 0) << name;
    EXPECT_EQ(slow_precision_warning(precision, 1.4), "") << "a fair price for the memory";
    const std::string warning = slow_precision_warning(precision, 193.4);
    EXPECT_NE(warning.find("about 190 times"), std::string::npos) << warning;
    EXPECT_NE(warning.find(name), std::string::npos) << warning;
    EXPECT_NE(warning.find("--precision float32"), std::string::npos) << warning;
  }
}

struct CountedWarnings final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override { ++count; }
  int count = 0;
};

// LibTorch's own warning, where this processor has one, comes with a trace of calls.
TEST(SlowPrecision, IsSaidInOurWordsAlone) {
  const bool before = at::globalContext().userEnabledMkldnn();
  CountedWarnings seen;
  const c10::WarningUtils::WarningHandlerGuard guard(&seen);
  for (const auto precision : {TrainPrecision::kBFloat16, TrainPrecision::kFloat16}) {
    at::globalContext().setUserEnabledMkldnn(true);  // it gives up after the first failure
    slowdown_of_precision(precision);
  }
  at::globalContext().setUserEnabledMkldnn(before);
  EXPECT_EQ(seen.count, 0);
  TORCH_WARN("the handler of whoever calls is in its place again");
  EXPECT_EQ(seen.count, 1);
}

}  // namespace
}  // namespace trireme::trainer_test
