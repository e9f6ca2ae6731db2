// trireme run and trireme train --supervise: a job that dies is started again, one that has ended
// is not, and nothing is left of either.

#include <csignal>

#include "tools/train_runs.h"

namespace trireme::supervise_test {
namespace {

using testing::comes_true;
using testing::expect_parts;
using testing::Finished;
using testing::Program;
using testing::read_file;
using testing::run_program;
using testing::trireme_binary;
using testing::Words;

class Supervised : public testing::TrainRuns {
 protected:
  void TearDown() override {
    EXPECT_TRUE(comes_true([&] { return testing::processes_with(mark_).empty(); }));
  }
  // A rank that adds a line to a file, and then does `what`.
  Words job(const std::string& what, const std::string& restarts = "2") const {
    return {trireme_binary(),
            "run",
            "-n",
            "1",
            "--supervise",
            restarts,
            "--",
            "sh",
            "-c",
            "echo began >> " + path("began") + "; " + what,
            "sh",
            "--supervise"};  // of the program
  }
  int times() const {
    const std::string text = read_file(path("began"));
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  bool has_begun(int count = 1) const {
    return comes_true([&] { return times() == count; });
  }

  const std::string mark_ = testing::unique_mark();
};

TEST_F(Supervised, AJobThatFailsIsStartedAgainButNotForever) {
  const Finished done = run_program(job("exit 7"), {mark_});
  EXPECT_EQ(done.code, 3);
  EXPECT_EQ(times(), 3);
  expect_parts(done.err,
               {"has ended with exit code 3: starting it again in 1 s (1 of 2)",
                "starting it again in 2 s (2 of 2)",
                "was started again 2 times within an hour: giving up"});
}

TEST_F(Supervised, AJobThatSucceedsOrIsWrongIsNot) {
  EXPECT_EQ(run_program(job("test \"$1\" = --supervise"), {mark_}).code, 0);
  EXPECT_EQ(times(), 1);
  const Finished wrong = run_program({trireme_binary(), "run", "-n", "0", "--supervise", "1", "x"});
  EXPECT_EQ(wrong.code, 2);
  const Finished missing =
      run_program({trireme_binary(), "run", "-n", "1", "--supervise", "1", "--", "/there/is/none"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err.find("starting it again"), std::string::npos) << missing.err;
}

TEST_F(Supervised, AJobThatIsAskedToEndIsNot) {
  for (const bool by_supervisor : {true, false}) {
    Program program(job("sleep 600 & wait"), {mark_});
    ASSERT_TRUE(has_begun(by_supervisor ? 1 : 2));
    kill(by_supervisor ? program.pid() : program.children().front(), SIGTERM);
    EXPECT_EQ(program.wait().code, 143);
    EXPECT_EQ(times(), by_supervisor ? 1 : 2);
    EXPECT_TRUE(comes_true([&] { return testing::processes_with(mark_).empty(); }));
  }
}

TEST_F(Supervised, AJobEndsWithItsSupervisor) {
  Program program(job("sleep 600 & wait"), {mark_});
  ASSERT_TRUE(has_begun());
  kill(program.pid(), SIGKILL);
  program.wait();
  EXPECT_EQ(times(), 1);
}

// What the rank has put into a session of its own outlives the rank, which dies with its launcher.
TEST_F(Supervised, ALauncherThatIsKilledLeavesNothing) {
  Program program(job("test $(wc -l < " + path("began") + ") = 2 && exit 0; setsid sleep 600"),
                  {mark_});
  ASSERT_TRUE(has_begun());
  kill(program.children().front(), SIGKILL);
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(times(), 2);
  expect_parts(done.err, {"its launcher was killed by signal 9 (Killed): starting it again"});
  EXPECT_TRUE(testing::processes_with(mark_).empty());
}

TEST_F(Supervised, ATrainingGoesOnFromItsNewestCheckpoint) {
  const std::string settings = gpt() + "--steps 300 --threads 1 --log-every 20 --save-every 40 ";
  train_well("calm", settings);
  Program program(command("run", settings + "-n 2 --supervise 5"), {mark_});
  ASSERT_TRUE(program.wait_for_output("step 100/"));
  kill(program.children().front(), SIGKILL);
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.err;
  expect_parts(done.err, {"its launcher was killed by signal 9"});
  EXPECT_NE(read_file(path("run") + "/train.log").find("resuming after step "), std::string::npos);
  EXPECT_TRUE(read_file(path("run") + "/model.safetensors") ==
              read_file(path("calm") + "/model.safetensors"));
}

TEST_F(Supervised, WhatCannotBeFoundAgainIsRefused) {
  const std::string settings = mlp() + "--steps 5 --supervise 2 ";
  const auto refused = [&](const Words& words) {
    const Finished done = run_program(words);
    EXPECT_EQ(done.code, 2);
    return done.err;
  };
  expect_parts(refused(command("run", settings)), {"--supervise: expected --save-every N"});
  expect_parts(refused(command("run", settings + "--save-every 2 --resume 3")),
               {"resumes from its newest checkpoint", "found --resume 3"});
  expect_parts(refused(command("run", settings + "--save-every 2 --nnodes 2 --rendezvous a:1")),
               {"expected a job on one machine, found --nnodes 2"});
  Words nowhere = testing::words(settings + "--save-every 2");
  nowhere.insert(nowhere.begin(), {trireme_binary(), "train"});
  expect_parts(refused(nowhere), {"expected --run FOLDER"});
  expect_parts(refused({trireme_binary(), "run", "-n", "1", "--supervise", "0", "--", "true"}),
               {"--supervise"});
}

}  // namespace
}  // namespace trireme::supervise_test
