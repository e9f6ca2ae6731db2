// `trireme train` on two machines: the weights of one process, checkpoints that load on one machine
// and on two, and commands that do not fit together.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/machines.h"
#include "support/processes.h"

namespace trireme::train_machines_test {
namespace {

namespace fs = std::filesystem;
using testing::Finished;
using testing::Machines;

const std::vector<std::string> kTraining = {"train",
                                            "--model",
                                            "mlp",
                                            "--steps",
                                            "12",
                                            "--eval-every",
                                            "6",
                                            "--save-every",
                                            "4",
                                            "--seed",
                                            "7",
                                            "--micro-batch",
                                            "32",
                                            "--batch",
                                            "128",
                                            "--threads",
                                            "1",
                                            "--timeout",
                                            "60"};

// `more` counts where both have a flag, each with one value.
std::vector<std::string> with(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  for (const std::string& word : more) {
    const auto given = std::find(words.begin(), words.end(), word);
    if (word.starts_with("-") && given != words.end()) {
      words.erase(given, given + 2);
    }
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class TrainMachines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = Machines::unavailable()) {
      GTEST_SKIP() << *reason;
    }
    machines_ = std::make_unique<Machines>(2);
  }

  std::string folder(const std::string& name) const { return scratch_.path() + "/" + name; }

  static Finished alone(const std::vector<std::string>& words) {
    return testing::run_program(with({testing::trireme_binary()}, words));
  }

  // The same command on both machines; machine 0's end.
  Finished together(const std::vector<std::string>& words,
                    const std::vector<std::string>& second = {}) {
    static int port = 29600;
    const auto command = with(with({testing::trireme_binary()}, words),
                              {"--nnodes",
                               "2",
                               "--rendezvous",
                               machines_->address(0) + ":" + std::to_string(++port),
                               "--interfaces",
                               "eth0"});
    const std::vector<std::string> secret = {"TRIREME_TOKEN=of this test"};
    auto zero = machines_->run(0, with(command, {"--node-rank", "0"}), secret);
    auto one = machines_->run(1, with(with(command, {"--node-rank", "1"}), second), secret);
    const Finished end = zero->wait();
    const Finished other = one->wait();
    EXPECT_EQ(end.code, other.code) << other.err;
    return end;
  }

  std::string weights(const std::string& name) const {
    return testing::read_file(folder(name) + "/model.safetensors");
  }

  nlohmann::json json(const std::string& name, const std::string& file) const {
    return nlohmann::json::parse(testing::read_file(folder(name) + "/" + file));
  }

  std::unique_ptr<Machines> machines_;
  testing::TemporaryFolder scratch_;
};

TEST_F(TrainMachines, GiveTheWeightsOfOneProcessAndLoadEachOthersCheckpoints) {
  ASSERT_EQ(alone(with(kTraining, {"--run", folder("one"), "-n", "1"})).code, 0);
  const std::string expected = weights("one");
  ASSERT_FALSE(expected.empty());

  const std::int64_t before = machines_->bytes(0, 0).sent;
  const Finished end =
      together(with(kTraining, {"--run", folder("two"), "-n", "1", "--zero", "3"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_TRUE(weights("two") == expected) << "two machines, stage 3";
  // Parameters and gradients went through the network, not around it.
  EXPECT_GT(machines_->bytes(0, 0).sent - before, 12 * 400'000);

  // Written on two machines, read on one; and the other way round, two ranks each.
  fs::copy(folder("two"), folder("two on one"), fs::copy_options::recursive);
  ASSERT_EQ(
      alone({"train", "--run", folder("two on one"), "--resume", "4", "-n", "2", "--zero", "1"})
          .code,
      0);
  EXPECT_TRUE(weights("two on one") == expected) << "from two machines to one";
  fs::copy(folder("one"), folder("one on two"), fs::copy_options::recursive);
  const Finished resumed =
      together({"train", "--run", folder("one on two"), "--resume", "8", "-n", "2", "--zero", "2"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(weights("one on two") == expected) << "from one machine to two of two ranks";
}

TEST_F(TrainMachines, WhatRank0WasToldCounts) {
  ASSERT_EQ(alone(with(kTraining, {"--run", folder("one"), "-n", "1"})).code, 0);
  const Finished end =
      together(with(kTraining, {"--run", folder("two"), "-n", "1"}), {"--seed", "8"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_TRUE(weights("two") == weights("one"));
}

// One rank on machine 0 and two on machine 1: what counts is three.
TEST_F(TrainMachines, ResolveSettingsForTheRanksOfAllMachines) {
  const std::string config = folder("deepspeed.json");
  std::ofstream(config) << R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4,
                              "gradient_accumulation_steps": 2})";
  const std::vector<std::string> words = {
      "train", "--model", "mlp", "--steps", "2", "-n", "1", "--balance", "speeds"};
  const Finished end =
      together(with(words, {"--config", config, "--speeds", "1,2,2", "--run", folder("three")}),
               {"-n", "2"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find(" 3 ranks, DDP"), std::string::npos) << end.out;
  EXPECT_EQ(json("three", "summary.json").at("ranks"), 3);
  EXPECT_EQ(json("three", "config.json").at("ranks"), 3);
  EXPECT_EQ(json("three", "config.json").at("batch"), 24);

  const Finished wrong = together(with(words, {"--speeds", "1", "--run", folder("wrong")}));
  EXPECT_EQ(wrong.code, 2) << wrong.err;
  EXPECT_NE(wrong.err.find("expected one for each of the 2 ranks, found 1"), std::string::npos)
      << wrong.err;
}

TEST_F(TrainMachines, ShareABatchAmongTheRanksOfAllMachinesAndStartOver) {
  const auto words = with(kTraining, {"--run", folder("two"), "-n", "1", "--micro-batch", "share"});
  Finished end = together(words);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(json("two", "config.json").at("micro_batch"), "64") << "of 128, for two ranks";
  const std::string expected = weights("two");
  // As if it had been killed before its first checkpoint.
  fs::remove_all(folder("two") + "/checkpoints");
  fs::remove(folder("two") + "/summary.json");
  end = together(words);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.out.find("starting over"), std::string::npos) << end.out;
  EXPECT_TRUE(weights("two") == expected);
}

// What is decided depends on the link; that it is the same on all ranks, is kept, and can be done
// again without it, does not.
TEST_F(TrainMachines, AverageOverASlowLinkAndDoItAgain) {
  if (const auto reason = Machines::unavailable("rate")) {
    GTEST_SKIP() << *reason;
  }
  const auto words = with(kTraining,
                          {"--steps",
                           "10",
                           "--save-every",
                           "50",
                           "--eval-every",
                           "50",
                           "-n",
                           "1",
                           "--schedule",
                           "constant"});
  const std::vector<std::string> automatic = {"--sync", "auto", "--sync-window", "2"};
  machines_->rate("4mbit");  // a step's gradients take most of a second
  const Finished end = together(with(with(words, automatic), {"--run", folder("auto")}));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const char* part : {"sync auto: exact, until measuring says something else",
                           "step 2: stays exact so far; ",
                           "step 4: exact to local ",
                           "% waiting, link "}) {
    EXPECT_NE(end.out.find(part), std::string::npos) << part << "\n" << end.out;
  }
  const std::string phases = json("auto", "summary.json").at("averaging").at("phases");
  EXPECT_TRUE(phases.starts_with("0:exact,4:")) << phases;
  const Finished half =
      together(with(with(words, automatic), {"--steps", "6", "--run", folder("half")}));
  ASSERT_EQ(half.code, 0) << half.err;
  const std::string begun = json("half", "summary.json").at("averaging").at("phases");

  machines_->rate("off");
  const Finished again = together(with(words,
                                       {"--sync",
                                        "local",
                                        "--sync-group",
                                        "machine",
                                        "--sync-schedule",
                                        phases,
                                        "--run",
                                        folder("again")}));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(weights("again") == weights("auto")) << phases;
  // Goes on as it was, though the link is fast now.
  const Finished more = together(
      with(with(words, automatic), {"--steps", "7", "--run", folder("half"), "--allow-changes"}));
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_NE(more.out.find("sync auto: local "), std::string::npos) << more.out;
  EXPECT_EQ(json("half", "summary.json").at("averaging").at("phases"), begun);
}

TEST_F(TrainMachines, NeedAFolderAndANumberOfRanksThatAreNamed) {
  const std::vector<std::string> machines = {
      "--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:29599"};
  Finished end = alone(with(with(kTraining, machines), {"-n", "1"}));
  EXPECT_EQ(end.code, 2);
  EXPECT_NE(end.err.find("--run FOLDER"), std::string::npos) << end.err;
  // Machines may have different numbers of processors, and a run does not say where its ranks were.
  end = alone(with(with(kTraining, machines), {"--run", folder("two")}));
  EXPECT_EQ(end.code, 2);
  EXPECT_NE(end.err.find("expected -n N"), std::string::npos) << end.err;
}

}  // namespace
}  // namespace trireme::train_machines_test
