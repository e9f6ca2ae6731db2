// Calls that are wrong, and what they leave.

#include <filesystem>

#include <signal.h>

#include "tools/train_runs.h"

namespace trireme::wrong_calls_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_parts;
using testing::Finished;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;
using testing::words;

class WrongCalls : public testing::TrainRuns {
 protected:
  void expect_refusal(Words call, const Words& parts) const {
    call.insert(call.begin(), trireme_binary());
    const Finished finished = run_program(call);
    EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
    expect_parts(finished.err, parts);
  }

  // As a shell calls it.
  static Finished in_shell(const std::string& rest) {
    return run_program({"bash", "-c", trireme_binary() + " " + rest});
  }
};

// As CLI11 would have it, that flag is the value.
TEST_F(WrongCalls, AFlagIsNoValueOfAnother) {
  const std::vector<std::pair<Words, Words>> calls = {
      {{"train", "--data", "--batch", "4"}, {"--data: expected a value, found \"--batch\""}},
      {{"train", "--run", "-n", "4"}, {"--run: expected a value, found \"-n\"", "--run=VALUE"}},
      {{"run", "-n", "1", "--log-dir", "--", "true"}, {"--log-dir: expected a value"}},
      {{"plot", path("run"), "-o", "--metric", "loss"},
       {"-o: expected a value, found \"--metric\""}},
      {{"compare", "--json", "--x", "a", "b"}, {"--json: expected a value, found \"--x\""}},
      {{"ckpt", "export", "--format", "--average", "a", "b"}, {"--format: expected a value"}},
      {{"predict", "run", "--data", "--output", "x"}, {"--data: expected a value"}},
      {{"sample", "--run", "--prompt", "x"}, {"--run: expected a value, found \"--prompt\""}},
      {{"bench", "optim", "--json", "--rounds", "2"}, {"--json: expected a value"}}};
  for (const auto& [call, parts] : calls) {
    expect_refusal(call, parts);
  }
  EXPECT_FALSE(fs::exists("--x") || fs::exists("--"));
  // A negative number is a value, and so is what is attached.
  expect_refusal({"train", "--lr", "-1"}, {"--lr: expected a number above 0"});
  expect_refusal({"train", "--data=--batch"}, {"--data: expected a file", "\"--batch\""});
}

TEST_F(WrongCalls, AnEmptyValueIsNone) {
  for (const Words& call : {words("run --elastic 1:2 --drill"), words("run -n 1 --token-file")}) {
    Words all = call;
    all.insert(all.end(), {"", "--", "true"});
    expect_refusal(all, {call.back() + ": expected a value, found \"\""});
  }
  expect_refusal({"run", "-n", "1", "--encrypt=maybe", "--", "true"},
                 {"--encrypt: expected no value, found \"maybe\""});
}

TEST_F(WrongCalls, NothingIsLeftOfARunThatCouldNotBegin) {
  const std::string empty = data_.write("empty.txt", "");
  const std::string table = data_.write("a.csv", "x,kind\n1,a\nzwei,b\n");
  const std::vector<std::pair<std::string, int>> cases = {
      {"--model gpt -n 2 --data " + empty, 3},
      {"--model mlp -n 2 --data " + table, 3},
      {"--model mlp -n 1 --folds 2 --data " + table, 3},
      {mlp() + "--batch 1000000 --micro-batch fixed", 2},
      {gpt() + "--nnodes 2 --node-rank 0 --rendezvous nowhere.invalid:1", 2}};
  for (const auto& [settings, code] : cases) {
    const Finished finished = train("new/inner/run", "--steps 1 " + settings);
    EXPECT_EQ(finished.code, code) << settings << finished.out << finished.err;
    EXPECT_FALSE(fs::exists(path("new"))) << settings;
  }
  // What was there stays.
  fs::create_directories(path("old"));
  EXPECT_EQ(train("old/run", "--steps 1 --model gpt --data " + empty).code, 3);
  EXPECT_TRUE(fs::is_empty(path("old")));
}

TEST_F(WrongCalls, WhatCannotBeWrittenIsSaid) {
  const Finished job = in_shell("run -n 2 -- sh -c 'echo hello; sleep 60' > /dev/full");
  EXPECT_EQ(job.code, 3);
  expect_parts(job.err, {"cannot write its output: No space left on device"});
  EXPECT_EQ(in_shell("run -n 1 -- yes | head -1; exit ${PIPESTATUS[0]}").code, 128 + SIGPIPE);
  train_well("run", gpt() + "--steps 1");
  // It does not go on for nobody.
  const Finished text = in_shell("sample --run " + path("run") + " --length 1000000 > /dev/full");
  EXPECT_EQ(text.code, 1);
  expect_parts(text.err, {"standard output could not be written"});
}

TEST_F(WrongCalls, FoldsAreNamedWhereACrossValidatedRunHasNoWeights) {
  train_well("folds", gpt() + "--steps 1 --folds 2");
  for (const char* which : {"auto", "best"}) {
    expect_refusal({"sample", "--run", path("folds"), "--weights", which},
                   {"was cross-validated", path("folds") + "/fold-1"});
  }
}

TEST_F(WrongCalls, RanksOfOurOwnDoNotUseMpi) {
  expect_refusal(words("run -n 2 --backend mpi -- true"), {"--backend: expected", "mpirun"});
  EXPECT_EQ(train("run", gpt() + "--steps 1 --backend mpi").code, 2);
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(WrongCalls, WhatIsNoDrillIsSaidInOurWords) {
  for (const char* text : {"", "{}", "[]", "{\"faults\":[{}]}"}) {
    const std::string file = data_.write("drill.json", text);
    for (const Words& call : {Words{"drill", file}, Words{"drill", file, "--json"}}) {
      expect_refusal(call, {"expected what a drill has recorded, found: "});
    }
    EXPECT_EQ(run_program({trireme_binary(), "drill", file}).err.find("json."), std::string::npos);
  }
}

TEST_F(WrongCalls, NoModelHasThatManyLayers) {
  expect_refusal(words("train --model gpt --layers 99999999"), {"--layers: expected", "10000"});
}

}  // namespace
}  // namespace trireme::wrong_calls_test
