// Elastic trainings over three machines: ranks and whole machines are killed, stopped, cut off,
// told to leave and started again. The weights at the end are those of one process in peace.

#include "cluster/elastic_machines.h"

#include <csignal>

#include <unistd.h>

namespace trireme::elastic_machines_test {
namespace {

using testing::comes_true;
using testing::ElasticMachines;
using testing::Finished;

TEST_F(ElasticMachines, OutliveARankAndAMachine) {
  calm();
  start_all("--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  ASSERT_FALSE(ranks(1).empty());
  kill(ranks(1).front(), SIGKILL);
  ASSERT_TRUE(says(0, "was killed by signal 9 (Killed): going on with 5 ranks"));
  ASSERT_TRUE(says(2, name(1) + ": rank "));  // on every survivor
  ASSERT_TRUE(says(0, "5 ranks, ZeRO-2"));
  ASSERT_TRUE(says(0, "step 200/"));
  machines_->kill(2);
  ASSERT_TRUE(says(0, name(2) + " is gone"));
  ASSERT_TRUE(says(0, "3 ranks, ZeRO-2"));
  expect_end(0);
  expect_end(1);
  expect_the_weights_of_peace("a rank, then a machine");
}

TEST_F(ElasticMachines, OneThatIsCutOffEndsItsRanksAndComesBack) {
  calm();
  start_all("--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  machines_->cut(2);
  ASSERT_TRUE(says(0, name(2) + " has not been heard from"));
  ASSERT_TRUE(says(0, "4 ranks, ZeRO-2"));
  // Before the others went on, nothing ran there any more.
  ASSERT_TRUE(says(2, "its ranks are ended"));
  EXPECT_TRUE(ranks(2).empty());
  machines_->mend(2);
  ASSERT_TRUE(says(0, name(2) + " has come"));
  ASSERT_TRUE(says(0, "6 ranks, ZeRO-2", 2));
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("cut and mended");
}

// Its launcher is stopped, and goes on when another has taken its place: its ranks end, and it
// does.
TEST_F(ElasticMachines, OneThatWakesWhenAnotherHasItsPlaceEnds) {
  calm();
  start_all("--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  const std::vector<pid_t> its_ranks = ranks(1);
  kill(program(1).pid(), SIGSTOP);
  ASSERT_TRUE(says(0, "4 ranks, ZeRO-2"));
  start(1, "--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, name(1) + " has come"));
  ASSERT_TRUE(says(0, "6 ranks, ZeRO-2", 2));
  kill(former_.back()->pid(), SIGCONT);
  const Finished late = former_.back()->wait(kPatience);
  EXPECT_EQ(late.code, 2) << late.out;
  EXPECT_NE(late.out.find("--node-rank 1 is already taken"), std::string::npos) << late.out;
  for (const pid_t rank : its_ranks) {
    EXPECT_NE(kill(rank, 0), 0) << rank;
  }
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("stopped, replaced, and woken");
}

TEST_F(ElasticMachines, OneThatIsAskedToEndLeavesAndAnotherTakesItsPlace) {
  calm();
  start_all("--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  kill(program(1).pid(), SIGTERM);
  expect_end(1);
  ASSERT_TRUE(says(0, name(1) + " has left"));
  ASSERT_TRUE(says(2, "the ranks meet anew: " + name(1) + " leaves the job"));
  ASSERT_TRUE(says(0, "4 ranks, ZeRO-2"));
  start(1, "--elastic 1:6 --heartbeat 2", 1);
  ASSERT_TRUE(says(0, name(1) + " has come, with 1 rank"));
  ASSERT_TRUE(says(0, "5 ranks, ZeRO-2"));
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("left and come");
}

TEST_F(ElasticMachines, OneWhoseRanksDoNotLeaveInTimeEndsThem) {
  calm();
  start_all("--elastic 1:6 --heartbeat 20 --grace 1");
  ASSERT_TRUE(says(0, "step 50/"));
  ASSERT_FALSE(ranks(1).empty());
  kill(ranks(1).front(), SIGSTOP);  // so that the step at hand does not end
  kill(program(1).pid(), SIGTERM);
  ASSERT_TRUE(says(1, "the ranks here have not left in time (--grace): ending them"));
  program(1).wait(kPatience);
  ASSERT_TRUE(says(0, "4 ranks, ZeRO-2"));
  expect_end(0);
  expect_end(2);
  expect_the_weights_of_peace("not left in time");
}

TEST_F(ElasticMachines, TooFewWaitForOneToComeBack) {
  calm();
  start_all("--restart 5 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  machines_->kill(1);
  ASSERT_TRUE(says(0, "4 ranks left, where the job needs 6"));
  ASSERT_TRUE(says(0, "for a machine to come back"));
  start(1, "--restart 5 --heartbeat 2");
  ASSERT_TRUE(says(0, "6 ranks, ZeRO-2", 2));
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("waited");
}

TEST_F(ElasticMachines, OneWhoseLauncherWasStoppedComesBack) {
  calm();
  start_all("--elastic 1:6 --heartbeat 1");
  ASSERT_TRUE(says(0, "step 50/"));
  kill(program(1).pid(), SIGSTOP);
  ASSERT_TRUE(says(0, name(1) + " has not been heard from"));
  ASSERT_TRUE(says(0, "4 ranks, ZeRO-2"));
  kill(program(1).pid(), SIGCONT);
  ASSERT_TRUE(says(1, "its ranks are ended"));
  ASSERT_TRUE(says(0, name(1) + " has come"));
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("a launcher stopped");
}

TEST_F(ElasticMachines, GoOnWhereMachineZeroHasNoRankLeft) {
  calm();
  start_all("--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  for (const pid_t rank : ranks(0)) {
    kill(rank, SIGKILL);
  }
  ASSERT_TRUE(says(1, "4 ranks, ZeRO-2"));  // whose first is rank 0 now
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("rank 0 on another machine");
}

TEST_F(ElasticMachines, StartAgainWhatIsLostTogether) {
  calm();
  start_all("--restart 100 --heartbeat 2");
  RandomStream random(3);
  for (int round = 1; round <= 5; ++round) {
    ASSERT_TRUE(says(0, "6 ranks, ZeRO-2", round));
    ASSERT_TRUE(comes_true([&] { return ranks(1).size() == 2; }));
    for (const pid_t rank : ranks(1)) {
      kill(rank, SIGKILL);
      usleep(static_cast<useconds_t>(1000 * random.below(40)));
    }
  }
  for (const int machine : {0, 1, 2}) {
    expect_end(machine);
  }
  expect_the_weights_of_peace("two ranks at almost the same time");
}

TEST_F(ElasticMachines, OutliveWhateverHappens) {
  outlive_whatever_happens([&](const std::string& elastic, RandomStream& random) {
    const std::size_t worlds = said("6 ranks, ZeRO-2");
    const std::string what = disturb(elastic, random);
    expect_said("6 ranks, ZeRO-2", worlds);
    return what;
  });
}

TEST_F(ElasticMachines, EndInGoodOrderJustWhenOneHasCome) {
  start_all("--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  machines_->kill(1);
  ASSERT_TRUE(says(0, "4 ranks, ZeRO-2"));
  start(1, "--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, name(1) + " has come"));
  kill(program(0).pid(), SIGTERM);
  const Finished finished = program(0).wait(kPatience);
  EXPECT_EQ(finished.code, 143) << finished.out;
  EXPECT_NE(finished.out.find("--resume"), std::string::npos) << finished.out;
  program(1).wait(kPatience);
  program(2).wait(kPatience);
}

TEST_F(ElasticMachines, EndWithTheLauncherOfMachineZero) {
  start_all("--elastic 1:6 --heartbeat 2");
  ASSERT_TRUE(says(0, "step 50/"));
  machines_->kill(0);
  for (const int machine : {1, 2}) {
    const Finished finished = program(machine).wait(kPatience);
    EXPECT_EQ(finished.code, 3) << finished.out;
    EXPECT_NE(finished.out.find(name(0) + " is gone"), std::string::npos) << finished.out;
  }
}

TEST_F(ElasticMachines, RefuseWhatCannotBe) {
  start(0, "--elastic 1:6 --heartbeat 2");
  start(1, "");
  const Finished stiff = program(1).wait(kPatience);
  EXPECT_EQ(stiff.code, 2);
  EXPECT_NE(stiff.out.find("it was started without --elastic or --restart and machine 0 with"),
            std::string::npos)
      << stiff.out;
  start(1, "--elastic 1:6 --heartbeat 20");
  const Finished patient = program(1).wait(kPatience);
  EXPECT_EQ(patient.code, 2);
  EXPECT_NE(patient.out.find("it was started with --heartbeat 20 and machine 0 with 2"),
            std::string::npos)
      << patient.out;
  start(1, "--elastic 1:6 --heartbeat 2", 2);
  start(2, "--elastic 1:6 --heartbeat 2", 3);
  const Finished many = program(0).wait(kPatience);
  EXPECT_EQ(many.code, 2);
  EXPECT_NE(
      many.out.find("--elastic: expected 1 to 6 ranks, found 7 on all machines together (-n)"),
      std::string::npos)
      << many.out;
  expect_end(1, 3);
  expect_end(2, 3);
  start(0, "--elastic 1:6 --heartbeat 60");
  const Finished slow = program(0).wait(kPatience);
  EXPECT_EQ(slow.code, 2);
  EXPECT_NE(slow.out.find("--heartbeat: expected at most 30 s"), std::string::npos) << slow.out;
}

}  // namespace
}  // namespace trireme::elastic_machines_test
