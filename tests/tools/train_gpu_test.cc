// trireme train --device cuda, where there is a GPU: several ranks on one, every stage, the same
// bits; and between a GPU and the CPU.

#include <cmath>
#include <filesystem>
#include <sstream>

#include "tools/train_runs.h"

namespace trireme::train_gpu_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::history;
using testing::Json;
using testing::read_file;
using testing::read_json_lines;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class TrainGpu : public testing::TrainRuns {
 protected:
  void SetUp() override {
    const std::string worker =
        (fs::path(trireme_binary()).parent_path() / "trireme-worker").string();
    const Finished asked = run_program({worker, "gpus"});
    if (asked.out.find("gpu: ") != 0) {
      GTEST_SKIP() << "no GPU here: " << asked.out << asked.err;
    }
  }

  // All that a run has computed: what it has logged, its weights, its checkpoint.
  void expect_same(const std::string& a, const std::string& b) const {
    EXPECT_EQ(history(path(b)), history(path(a))) << b;
    for (const char* name : {"model.safetensors", "evaluation.csv"}) {
      const std::string file = read_file(path(a) + "/" + name);
      EXPECT_FALSE(file.empty()) << a << "/" << name;
      EXPECT_TRUE(file == read_file(path(b) + "/" + name)) << name << " of " << b;
    }
    // Every tensor but the state of each rank's generator on the CPU, which nothing is drawn from.
    const Finished compared = run_program({trireme_binary(), "ckpt", "diff", path(a), path(b)});
    EXPECT_NE(compared.out.find("tensors are equal, bit by bit"), std::string::npos);
    std::istringstream lines(compared.out);
    for (std::string line; std::getline(lines, line);) {
      const bool expected = line.starts_with("A: ") || line.starts_with("B: ") ||
                            line.starts_with("note ") ||
                            line.find("random rank-") != std::string::npos ||
                            line.ends_with("tensors are equal, bit by bit");
      EXPECT_TRUE(expected) << b << ": " << line;
    }
  }

  // One process = DDP = ZeRO-1 = ZeRO-2 = ZeRO-3.
  void expect_same_bits(const std::string& settings, const Words& ways) const {
    const std::string all = settings + " --device cuda --steps 6 --save-every 6 --eval-every 3 ";
    train_well("one", all + "-n 1");
    EXPECT_EQ(testing::read_json(path("one") + "/config.json").at("device"), "cuda");
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::string run = "way" + std::to_string(i);
      train_well(run, all + ways[i]);
      SCOPED_TRACE(ways[i]);
      expect_same("one", run);
    }
  }

  std::vector<double> losses(const std::string& run) const {
    std::vector<double> all;
    for (const Json& line : read_json_lines(path(run) + "/metrics.jsonl")) {
      if (line.contains("loss") && line.contains("step") && line.contains("seconds")) {
        all.push_back(line.at("loss").get<double>());
      }
    }
    return all;
  }

  const Words every_way_ = {"-n 2",
                            "-n 2 --zero 1",
                            "-n 2 --zero 2",
                            "-n 2 --zero 3",
                            "-n 3 --zero 1",
                            "-n 3 --zero 2",
                            "-n 3 --zero 3"};
  const Words far_way_ = {"-n 3 --zero 3"};
};

TEST_F(TrainGpu, MlpHasTheSameBitsInEveryWay) {
  expect_same_bits(mlp() + "--dropout 0.1 --clip-norm 0.5", every_way_);
}

TEST_F(TrainGpu, MlpInBfloat16HasTheSameBitsInEveryWay) {
  expect_same_bits(mlp() + "--dropout 0.1 --clip-norm 0.5 --precision bfloat16", every_way_);
}

TEST_F(TrainGpu, GptHasTheSameBitsInEveryWay) {
  expect_same_bits(gpt() + "--dropout 0.1 --clip-norm 0.5", every_way_);
}

TEST_F(TrainGpu, GptInBfloat16HasTheSameBitsInEveryWay) {
  expect_same_bits(gpt() + "--dropout 0.1 --clip-norm 0.5 --precision bfloat16", every_way_);
}

TEST_F(TrainGpu, ConvnetHasTheSameBits) {
  expect_same_bits(convnet() + "--dropout 0.1", {"-n 2", "-n 3 --zero 3"});
}

TEST_F(TrainGpu, BertHasTheSameBits) {
  expect_same_bits(bert() + "--dropout 0.1", far_way_);
}

TEST_F(TrainGpu, Float16HasTheSameBits) {
  expect_same_bits(gpt() + "--precision float16 --dropout 0.1", far_way_);
}

TEST_F(TrainGpu, AutocastHasTheSameBits) {
  expect_same_bits(gpt() + "--precision autocast --dropout 0.1", far_way_);
}

TEST_F(TrainGpu, AveragesHistogramsAndLossWeightsHaveTheSameBits) {
  expect_same_bits(mlp() + "--ema-decay 0.9 --histogram-every 3 --loss-weights 1,2,3", far_way_);
  const std::string average = read_file(path("one") + "/average.safetensors");
  EXPECT_FALSE(average.empty());
  EXPECT_TRUE(average == read_file(path("way0") + "/average.safetensors"));
  EXPECT_FALSE(average == read_file(path("one") + "/model.safetensors"));
}

TEST_F(TrainGpu, WhatIsRecomputedHasTheSameBits) {
  const std::string settings = gpt() + "--device cuda --steps 6 --save-every 6 --dropout 0.1 ";
  train_well("kept", settings);
  train_well("again", settings + "--recompute -n 2 --zero 3");
  expect_same("kept", "again");
}

TEST_F(TrainGpu, FoundByItselfAndSaid) {
  const Finished finished = train("auto", mlp() + "-n 2 --steps 2");
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.out, {"2 ranks on ", " GPU", "DDP"});
  EXPECT_EQ(testing::read_json(path("auto") + "/config.json").at("device"), "cuda");
  const Finished sparse = train("wide", wide() + "--steps 2");
  EXPECT_EQ(sparse.code, 0) << sparse.err;
  expect_parts(sparse.err, {"training on the CPU and not on", "the model wide"});
}

TEST_F(TrainGpu, TheLargestMicroBatchIsFound) {
  const Finished finished =
      train("auto", mlp() + "--device cuda -n 2 --micro-batch auto --steps 3");
  EXPECT_EQ(finished.code, 0) << finished.err;
  expect_parts(finished.out, {"micro-batches of 6 fit"});
}

TEST_F(TrainGpu, FoldsAreTrained) {
  const Finished finished = train("folds", convnet() + "--device cuda --folds 2 --steps 3");
  EXPECT_EQ(finished.code, 0) << finished.err;
}

// Begins with the same weights, and goes the same way but for rounding.
TEST_F(TrainGpu, LearnsWhatTheCpuLearns) {
  const std::string settings = mlp() + "--dropout 0 --steps 200 --save-initial ";
  train_well("cpu", settings + "--device cpu");
  train_well("gpu", settings + "--device cuda");
  EXPECT_TRUE(read_file(path("cpu") + "/initial.safetensors") ==
              read_file(path("gpu") + "/initial.safetensors"));
  const std::vector<double> cpu = losses("cpu");
  const std::vector<double> gpu = losses("gpu");
  ASSERT_EQ(cpu.size(), 200U);
  ASSERT_EQ(gpu.size(), cpu.size());
  EXPECT_NEAR(gpu[0], cpu[0], 1e-5 * cpu[0]);
  EXPECT_LT(cpu.back(), 0.5 * cpu[0]);
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(gpu[i], cpu[i], 0.02 * (cpu[0] + cpu[i])) << "step " << i + 1;
  }
}

TEST_F(TrainGpu, GoesOnOnTheOtherDeviceWhereThatIsAllowed) {
  const std::string settings =
      gpt() + "--dropout 0 --save-every 2 --schedule constant --warm-up 0 ";
  train_well("run", settings + "--device cpu --steps 4");
  const auto resume = [&](const std::string& flags) {
    Words all = testing::words(flags);
    all.insert(all.begin(), {trireme_binary(), "train", "--resume", path("run")});
    return run_program(all);
  };
  const Finished refused = resume("--device cuda --steps 8");
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"device: \"cpu\" in the checkpoint, \"cuda\" now", "--allow-changes"});
  const Finished there = resume("--device cuda --steps 8 -n 2 --zero 3 --allow-changes");
  EXPECT_EQ(there.code, 0) << there.err;
  expect_parts(there.out, {"resuming after step 4", "device: \"cpu\" in the checkpoint"});
  const Finished back = resume("--device cpu --steps 12 --allow-changes");
  EXPECT_EQ(back.code, 0) << back.err;
  expect_parts(back.out, {"resuming after step 8", "device: \"cuda\" in the checkpoint"});

  train_well("cpu", settings + "--device cpu --steps 12");
  const std::vector<double> cpu = losses("cpu");
  const std::vector<double> moved = losses("run");
  ASSERT_EQ(moved.size(), cpu.size());
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(moved[i], cpu[i], 0.01 * cpu[i]) << "step " << i + 1;
  }
}

TEST_F(TrainGpu, AResumedRunHasTheBitsOfOneThatWasNotInterrupted) {
  const std::string settings =
      mlp() + "--device cuda --dropout 0.1 --save-every 3 --schedule constant ";
  train_well("whole", settings + "--steps 6");
  train_well("parts", settings + "--steps 3 -n 3 --zero 3");
  const Finished resumed = run_program({trireme_binary(),
                                        "train",
                                        "--resume",
                                        path("parts"),
                                        "--steps",
                                        "6",
                                        "--allow-changes",
                                        "-n",
                                        "2",
                                        "--zero",
                                        "1"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(read_file(path("whole") + "/model.safetensors") ==
              read_file(path("parts") + "/model.safetensors"));
}

TEST_F(TrainGpu, PredictsAndSamples) {
  train_well("images", mlp() + "--device cuda --steps 30");
  const auto predict = [&](const std::string& device) {
    const std::string file = path(device + ".csv");
    const Finished finished = run_program({trireme_binary(),
                                           "predict",
                                           path("images"),
                                           "--data",
                                           data_.path(),
                                           "--output",
                                           file,
                                           "--device",
                                           device});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return testing::read_rows(file);
  };
  const auto gpu = predict("auto");
  const auto cpu = predict("cpu");
  ASSERT_EQ(gpu.size(), 37U);
  ASSERT_EQ(cpu.size(), gpu.size());
  for (std::size_t row = 0; row < gpu.size(); ++row) {
    ASSERT_EQ(gpu[row].size(), cpu[row].size());
    for (std::size_t cell = 0; cell < gpu[row].size(); ++cell) {
      EXPECT_NEAR(gpu[row][cell], cpu[row][cell], 1e-4) << "row " << row;
    }
  }

  train_well("text", gpt() + "--device cuda --steps 30 -n 2 --zero 3");
  for (const char* device : {"auto", "cpu", "cuda"}) {
    const Finished text = run_program({trireme_binary(),
                                       "sample",
                                       "--run",
                                       path("text"),
                                       "--prompt",
                                       "abcd",
                                       "--length",
                                       "20",
                                       "--device",
                                       device});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out.size(), 4U + 20U + 1U) << text.out;
  }
}

}  // namespace
}  // namespace trireme::train_gpu_test
