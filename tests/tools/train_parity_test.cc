// What trireme train computes does not depend on how it is divided.

#include <filesystem>

#include "tools/train_runs.h"
#include "trireme/core/machine.h"

namespace trireme::train_parity_test {
namespace {

using testing::Words;

class TrainParity : public testing::TrainRuns {
 protected:
  // Runs one rank with DDP, then each of these, and expects the same losses, the same evaluations
  // and the same weights.
  void expect_equal(const std::string& settings,
                    const std::vector<std::pair<int, int>>& ranks_and_stages) {
    std::filesystem::remove_all(path("alone"));
    const Words expected = train_well("alone", settings + " -n 1 --zero 0");
    ASSERT_GE(expected.size(), 6U) << "steps and evaluations";
    for (const auto& [ranks, stage] : ranks_and_stages) {
      const std::string run = std::to_string(ranks) + "-" + std::to_string(stage);
      std::filesystem::remove_all(path(run));
      EXPECT_EQ(
          train_well(
              run, settings + " -n " + std::to_string(ranks) + " --zero " + std::to_string(stage)),
          expected)
          << ranks << " ranks, stage " << stage;
      expect_same_file("alone", run, "model.safetensors");
      expect_same_file("alone", run, "evaluation.csv");
    }
  }

  void expect_same_file(const std::string& a, const std::string& b, const std::string& name) const {
    const std::string file = testing::read_file(path(a) + "/" + name);
    EXPECT_FALSE(file.empty());
    EXPECT_TRUE(file == testing::read_file(path(b) + "/" + name))
        << name << " of " << a << " and " << b;
  }
};

constexpr const char* kSteps = " --steps 5 --eval-every 2 --eval-batch 8";

TEST_F(TrainParity, OfAConvnetWithDropoutAndAugmentation) {
  expect_equal(
      convnet() + "--dropout 0.3 --shift 1 --flip --noise 0.1 --normalise standard" + kSteps,
      {{1, 3}, {2, 0}, {2, 1}, {2, 2}, {2, 3}, {3, 0}, {3, 1}, {3, 2}, {3, 3}, {4, 0}, {4, 3}});
}

TEST_F(TrainParity, OfAGptWithDropout) {
  expect_equal(gpt() + "--dropout 0.2 --save-initial" + kSteps,
               {{1, 1}, {2, 3}, {3, 2}, {4, 1}, {4, 3}});
  expect_same_file("alone", "4-3", "initial.safetensors");  // built in parts
}

TEST_F(TrainParity, OfABertWithItsMasks) {
  expect_equal(bert() + "--dropout 0.2 --save-initial" + kSteps,
               {{1, 1}, {2, 0}, {2, 3}, {3, 2}, {3, 3}, {4, 1}});
  expect_same_file("alone", "3-3", "initial.safetensors");
  // Rounded, and with layers computed twice.
  const std::string half = bert() + "--precision bfloat16 --recompute" + kSteps;
  EXPECT_EQ(train_well("half-3", half + " -n 3 --zero 3 --placement copied"),
            train_well("half-1", half + " -n 1"));
}

TEST_F(TrainParity, OfAWideModelWithSparseGradients) {
  expect_equal(wide() + kSteps, {{1, 2}, {2, 1}, {3, 3}, {4, 2}});
}

TEST_F(TrainParity, OfAWideModelThatUpdatesTheRowsOfAStep) {
  for (const char* settings : {"--sparse-update lazy ",
                               "--sparse-update lazy --optimizer lion --clip-norm 0.1 ",
                               "--sparse-update lazy --precision bfloat16 --ema-decay 0.9 ",
                               "--precision float16 ",
                               "--precision bfloat16 --optimizer adagrad "}) {
    SCOPED_TRACE(settings);
    expect_equal(wide() + settings + kSteps, {{2, 0}, {2, 1}, {3, 2}, {3, 3}});
  }
}

// A table is what is left of it without its zeros.
TEST_F(TrainParity, OfAWideModelOnATableAndOnItsPairs) {
  const std::string settings = "--sparse-update lazy --save-initial" + std::string(kSteps);
  train_well("pairs", wide() + settings);
  train_well("table", wide(Rows::kTable) + settings + " -n 3 --zero 2");
  expect_same_file("pairs", "table", "initial.safetensors");
  expect_same_file("pairs", "table", "model.safetensors");
}

TEST_F(TrainParity, OfEveryOptimizer) {
  for (const char* optimizer : {"rmsprop --momentum 0.5 --optimizer-options centered,alpha=0.9",
                                "adamw --optimizer-options amsgrad",
                                "adafactor --weight-decay 0.1"}) {
    SCOPED_TRACE(optimizer);
    expect_equal(gpt() + "--optimizer " + optimizer + kSteps, {{2, 0}, {3, 3}});
  }
}

// Nothing is said of ranks, threads and micro-batches: what machine it runs on must not matter.
TEST_F(TrainParity, OfOneCommandOnDifferentNumbersOfProcessors) {
  const std::string settings = "--model gpt --layers 1 --width 64 --heads 2 --sequence 32 --data " +
                               data_.write("text.txt", std::string(4000, 'a')) + " --steps 4";
  std::vector<std::string> runs;
  const std::vector<int> all = allowed_cpus();
  for (const std::size_t count : {std::size_t{1}, all.size()}) {
    std::string list;
    for (std::size_t i = 0; i < count; ++i) {
      list += (list.empty() ? "" : ",") + std::to_string(all[i]);
    }
    runs.push_back("on-" + std::to_string(runs.size()));
    Words words = command(runs.back(), settings);
    words.insert(words.begin(), {"taskset", "-c", list});
    const auto finished = testing::run_program(words);
    EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
    EXPECT_EQ(summary(runs.back()).at("ranks"), std::min<std::size_t>(count, 32 / 4));
  }
  expect_same_file(runs[0], runs[1], "model.safetensors");
  // And with more ranks than either.
  train_well("seven", settings + " -n 7 --zero 3");
  expect_same_file(runs[0], "seven", "model.safetensors");
  // Threads do matter, so they are kept.
  train_well("saved", settings + " -n 1 --save-every 2");
  const auto refused = train("saved", "--resume 2 --threads 2 --steps 4");
  EXPECT_EQ(refused.code, 2) << refused.out;
  EXPECT_NE(refused.err.find("threads: 1 in the checkpoint, 2 now"), std::string::npos)
      << refused.err;
}

TEST_F(TrainParity, OfPackedAndPlainData) {
  const Words plain = train_well("plain", convnet() + kSteps);
  EXPECT_EQ(testing::run_program({"/bin/sh", "-c", "rm " + data_.path() + "/*-ubyte"}).code, 0);
  EXPECT_EQ(train_well("packed", convnet(/*packed=*/true) + "-n 2" + kSteps), plain);
}

TEST_F(TrainParity, OfActivationsComputedTwice) {
  for (const std::string& model : {gpt() + "--dropout 0.2", convnet() + "--dropout 0.3"}) {
    const std::string run = std::to_string(model.size());
    EXPECT_EQ(train_well(run + "-again", model + " --recompute -n 2 --zero 3" + kSteps),
              train_well(run, model + kSteps));
  }
}

TEST_F(TrainParity, OfMicroBatchesDealtUnevenly) {
  const Words expected = train_well("even", convnet() + "-n 2" + kSteps);
  for (const char* speeds : {"3,1", "1,5", "1,0"}) {
    EXPECT_EQ(train_well(std::string("uneven-") + speeds,
                         convnet() + "-n 2 --zero 2 --balance speeds --speeds " + speeds + kSteps),
              expected)
        << speeds;
  }
}

TEST_F(TrainParity, OfThreadsThatPrepareData) {
  const std::string settings = convnet() + "--shift 2 --noise 0.2" + kSteps;
  const Words expected = train_well("none", settings + " --data-threads 0");
  EXPECT_EQ(train_well("three", settings + " --data-threads 3"), expected);
}

TEST_F(TrainParity, OfBatchesThatGrow) {
  const std::string settings = mlp() + "--batch-schedule 2:24,4:36 --record-samples" + kSteps;
  const Words expected = train_well("one", settings);
  EXPECT_EQ(train_well("three", settings + " -n 3 --zero 1"), expected);
  expect_same_file("one", "three", "samples.jsonl");
  const std::vector<std::size_t> batches = {12, 12, 24, 24, 36};
  const auto samples = testing::read_json_lines(path("one") + "/samples.jsonl");
  ASSERT_EQ(samples.size(), batches.size());
  for (std::size_t step = 0; step < batches.size(); ++step) {
    EXPECT_EQ(samples[step].size(), batches[step]);
  }
}

// Biases and norms of a gpt have no decay, unless that is asked for; of other models they do.
TEST_F(TrainParity, EndsWhereOtherParametersDecay) {
  const std::string settings = "--weight-decay 0.5" + std::string(kSteps);
  const Words usual = train_well("usual", gpt() + settings);
  EXPECT_NE(train_well("all", gpt() + "--decay-all " + settings), usual);
  EXPECT_EQ(train_well("divided", gpt() + "-n 3 --zero 3 " + settings), usual);
  EXPECT_EQ(train_well("mlp", mlp() + settings),
            train_well("mlp-all", mlp() + "--decay-all " + settings));
}

TEST_F(TrainParity, EndsWithAnotherSeed) {
  EXPECT_NE(train_well("one", mlp() + "--seed 1" + kSteps),
            train_well("two", mlp() + "--seed 2" + kSteps));
}

}  // namespace
}  // namespace trireme::train_parity_test
