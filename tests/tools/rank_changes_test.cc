// trireme train --elastic: summary.json counts who was lost, has left and has joined.

#include <csignal>

#include "tools/train_runs.h"

namespace trireme::rank_changes_test {
namespace {

using testing::Finished;
using testing::Json;
using testing::Program;
using testing::read_file;
using testing::run_program;

class RankChangesOfRuns : public testing::TrainRuns {};

const std::string kSteps = "--steps 60 --log-every 1 --threads 1 ";

// Nobody has asked yet who is in the first world.
TEST_F(RankChangesOfRuns, CountsALossBeforeTheFirstStep) {
  for (const bool again : {true, false}) {
    const std::string run = again ? "again" : "fewer";
    Program program(
        command(run, mlp() + kSteps + "-n 3 " + (again ? "--restart 10" : "--elastic 1:3")));
    ASSERT_TRUE(program.wait_for_children("trireme-worker", 3));
    kill(program.children()[0], SIGKILL);
    const Finished done = program.wait();
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    EXPECT_EQ(summary(run).at("rank_changes"),
              Json({{"times", 1},
                    {"lost", 1},
                    {"left", 0},
                    {"joined", again ? 1 : 0},
                    {"steps_again", 0}}));
  }
}

TEST_F(RankChangesOfRuns, CountsNoStepWhereAllAreLostBeforeTheFirst) {
  Program program(command("run", mlp() + kSteps + "-n 2 --restart 10"));
  ASSERT_TRUE(program.wait_for_children("trireme-worker", 2));
  for (const pid_t rank : program.children()) {
    kill(rank, SIGKILL);
  }
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  EXPECT_EQ(summary("run").at("rank_changes"),
            Json({{"times", 1}, {"lost", 2}, {"left", 0}, {"joined", 2}, {"steps_again", 0}}));
}

// One that is stopped keeps the step at hand from its end, after which ranks were to leave; it is
// lost, and the rank that leaves with the same change is not.
TEST_F(RankChangesOfRuns, CountsAKillThatFollowsALeave) {
  const std::string steps = "--steps 400 --log-every 1 --threads 1 ";
  train_well("calm", mlp() + steps);
  Program program(command("lossy", mlp() + steps + "-n 3 --elastic 1:3 --heartbeat 60"));
  ASSERT_TRUE(program.wait_for_output("step 20/"));
  const pid_t last = program.children()[2];
  kill(last, SIGSTOP);
  const Finished asked =
      run_program({testing::trireme_binary(), "scale", std::to_string(program.pid()), "1"});
  EXPECT_EQ(asked.code, 0) << asked.err;
  kill(last, SIGKILL);
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  EXPECT_TRUE(read_file(path("lossy") + "/model.safetensors") ==
              read_file(path("calm") + "/model.safetensors"));
  EXPECT_EQ(summary("lossy").at("rank_changes"),
            Json({{"times", 1}, {"lost", 1}, {"left", 1}, {"joined", 0}, {"steps_again", 1}}));
}

// A fold of a cross-validation has the changes of its own time, and steps are its own.
TEST_F(RankChangesOfRuns, OfFoldsAreAddedUp) {
  Program program(command("run", mlp() + kSteps + "-n 2 --folds 3 --restart 10 --save-every 7"));
  ASSERT_TRUE(program.wait_for_output("step 40/", 2));
  kill(program.children()[1], SIGKILL);
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  const Json changes = summary("run").at("rank_changes");
  EXPECT_EQ(changes.at("times"), 1);
  EXPECT_EQ(changes.at("lost"), 1);
  EXPECT_EQ(changes.at("joined"), 1);
  EXPECT_GE(changes.at("steps_again"), 1);   // the last checkpoint is of step 35, or of one since
  EXPECT_LE(changes.at("steps_again"), 60);  // of one fold
}

}  // namespace
}  // namespace trireme::rank_changes_test
