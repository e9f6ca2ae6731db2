// The loss of a batch: what is divided by what, and in which precision.

#include "trireme/models/task.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/utils.h>

#include "data/data_files.h"
#include "support/ranks.h"
#include "trireme/data/readers.h"
#include "trireme/train/trainer.h"

namespace trireme::task_test {
namespace {

namespace nn = torch::nn;
namespace F = nn::functional;
using at::Tensor;

constexpr std::int64_t kLetters = 4;
constexpr std::int64_t kSequence = 5;

// The next letter from the last one, by a table.
struct PairsImpl : nn::Module {
  nn::Embedding table{nullptr};
  PairsImpl() {
    torch::manual_seed(3);
    table = register_module("table", nn::Embedding(kLetters, kLetters));
  }
  Tensor forward(const Tensor& tokens) {
    return table->forward(tokens.slice(1, 0, tokens.size(1) - 1));
  }
};
TORCH_MODULE(Pairs);

class Losses final : public TrainObserver {
 public:
  void step(const StepReport& report) override { all.push_back(report.loss); }
  void evaluated(std::int64_t, const Evaluation&, bool) override {}
  void values(const std::string&, std::int64_t, std::span<const float>) override {}
  void message(const std::string&) override {}
  void samples(const std::vector<std::int64_t>& samples) override { taken.push_back(samples); }
  void weights(const std::string&, const nn::Module&) override {}

  std::vector<double> all;
  std::vector<std::vector<std::int64_t>> taken;
};

// The weighted mean of a step is that of all its tokens, whoever computes them in what parts.
TEST(Task, WeightsOfTokensDoNotDependOnMicroBatches) {
  const testing::DataFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += static_cast<char>(i * i % 7 % kLetters);
  }
  const std::string path = folder.write("letters", text);
  const std::vector<double> weights = {1, 4, 0.25, 0};
  testing::fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    const auto world = init(testing::options_for(job, rank, 2));
    const Parts data{open_tokens({path}, {.sequence = kSequence, .vocabulary = kLetters}), nullptr};
    std::vector<double> first;
    for (const char* micro_batch : {"12", "6", "3", "1"}) {
      TrainSettings settings;
      settings.model = "mine";
      settings.data = "mine";
      settings.steps = 5;
      settings.batch = 12;
      settings.micro_batch = micro_batch;
      settings.schedule = ScheduleKind::kConstant;
      settings.optimizer = "sgd";
      settings.lr = 0.1;
      settings.ranks = 2;
      settings.memory_limit = "1GB";
      settings.loss_weights = weights;
      settings.record_samples = true;
      Pairs net;
      const Trainable model{net.ptr(), [net = net.ptr()](const TensorBatch& batch) {
                              return net->forward(batch.tokens);
                            }};
      Losses losses;
      train(resolve(settings), model, data, world, &losses);
      ASSERT_EQ(losses.all.size(), 5U);
      first = first.empty() ? losses.all : first;
      for (std::size_t i = 0; i < first.size(); ++i) {
        EXPECT_NEAR(losses.all[i], first[i], 1e-5) << micro_batch << " step " << i + 1;
      }
      // What torch says of the first step's batch as a whole.
      Batch batch;
      data.train->read(losses.taken[0], batch);
      const Tensor tokens = torch::tensor(batch.tokens).view({12, kSequence + 1});
      const double expected =
          F::cross_entropy(Pairs()->forward(tokens).flatten(0, 1),
                           tokens.slice(1, 1).flatten(),
                           F::CrossEntropyFuncOptions().weight(
                               torch::tensor(weights, at::kDouble).to(at::kFloat)))
              .item<double>();
      EXPECT_NEAR(losses.all[0], expected, 1e-5) << micro_batch;
    }
  });
}

// A task of the user's own: only the last letter of a sample counts.
class LastLetter final : public Task {
 public:
  using Task::Task;
  Tensor loss(const Tensor& scores, const TensorBatch& batch, double) const override {
    return F::cross_entropy(scores.select(1, -1), batch.tokens.select(1, -1));
  }
  Judged judge(const Tensor& scores, const TensorBatch& batch) const override {
    Judged judged;
    for (std::int64_t i = 0; i < batch.samples; ++i) {
      const Tensor last = scores[i][-1];
      const auto target = batch.tokens[i][-1].item<std::int64_t>();
      judged.losses.push_back(-last.log_softmax(0)[target].item<float>());
      judged.correct.push_back(last.argmax().item<std::int64_t>() == target ? 1 : 0);
    }
    return judged;
  }
  std::int64_t targets() const override { return 1; }
};

TEST(Task, MayBeTheUsersOwn) {
  const testing::DataFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += static_cast<char>(i * i % 7 % kLetters);
  }
  const auto data =
      open_tokens({folder.write("letters", text)}, {.sequence = kSequence, .vocabulary = kLetters});
  const auto world = init(testing::options_for(testing::unique_job(), 0, 1));
  TrainSettings settings;
  settings.steps = 1;
  settings.batch = 12;
  settings.micro_batch = "3";
  settings.lr = 1e-9;  // what is evaluated is what was there before
  settings.ranks = 1;
  settings.record_samples = true;
  Pairs net;
  Trainable model{net.ptr(), [net = net.ptr()](const TensorBatch& batch) {
                    return net->forward(batch.tokens);
                  }};
  model.task = std::make_shared<const LastLetter>(data->shape());
  Losses losses;
  const TrainResult result = train(resolve(settings), model, {data, data}, world, &losses);
  // By the table that the net is: of the letters before the last, and the last.
  const Tensor table = Pairs()->table->weight.detach().log_softmax(1);
  const auto mean_of = [&](const std::vector<std::int64_t>& samples) {
    Batch batch;
    data->read(samples, batch);
    double sum = 0;
    for (std::int64_t i = 0; i < batch.samples; ++i) {
      const auto at = static_cast<std::size_t>((i + 1) * (kSequence + 1)) - 1;
      sum -= table[batch.tokens[at - 1]][batch.tokens[at]].item<double>();
    }
    return sum / static_cast<double>(batch.samples);
  };
  EXPECT_NEAR(losses.all.at(0), mean_of(losses.taken.at(0)), 1e-5);
  std::vector<std::int64_t> all(static_cast<std::size_t>(data->size()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_NEAR(result.evaluation.metrics.at("loss"), mean_of(all), 1e-5);
  settings.loss_weights = {1, 2, 3, 4};
  EXPECT_NE(testing::message_of<ConfigError>([&] {
              train(resolve(settings), model, {data, data}, world);
            }).find("loss_weights"),
            std::string::npos);
}

// Targets and squares are those of float32, whatever the model computes in: 16 bits end at 65504,
// or have 8 of them before the point.
TEST(Task, NumbersArePredictedInFullPrecision) {
  SampleShape shape;
  shape.dense = {1};
  const Task task(shape);
  TensorBatch batch;
  batch.samples = 3;
  batch.targets = torch::tensor({1001.5F, -70000.0F, 300.25F});
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    // These are numbers of every type.
    const Tensor scores =
        torch::tensor({{1000.0F}, {-512.0F}, {300.0F}}).to(type).requires_grad_(true);
    const Tensor loss = task.loss(scores, batch);
    const double expected = (1.5 * 1.5 + 69488.0 * 69488.0 + 0.25 * 0.25) / 3;
    EXPECT_NEAR(loss.item<double>() / expected, 1, 1e-6) << type;
    const Task::Judged judged = task.judge(scores, batch);
    EXPECT_EQ(judged.losses[0], 2.25F);
    batch.targets[1] = -512.0F;
    task.loss(scores, batch).backward();
    const Tensor gradient = scores.grad().to(at::kFloat).flatten();
    EXPECT_NEAR(gradient[0].item<double>(), 2 * -1.5 / 3, 1e-2) << type;
    EXPECT_NEAR(gradient[2].item<double>(), 2 * -0.25 / 3, 2e-3) << type;
    batch.targets[1] = -70000.0F;
  }
}

}  // namespace
}  // namespace trireme::task_test
