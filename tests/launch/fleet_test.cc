// `trireme run` on several machines, while the job runs and when it ends.

#include <chrono>
#include <fstream>
#include <memory>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include "launch/launchers.h"
#include "support/processes.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using testing::expect_no_part;
using testing::expect_parts;
using testing::Finished;
using testing::kPrintPlace;
using testing::kSecret;
using testing::Launchers;
using testing::Program;
using testing::trireme_binary;
using testing::value_of;

TEST(Fleet, TellsEveryRankItsPlaceInTheWorld) {
  // Unequal numbers of ranks.
  const std::vector<int> ranks = {2, 1, 3};
  const Launchers machines(3);
  const auto results = machines.run(ranks, kPrintPlace);
  int rank = 0;
  const std::string token = value_of(results[0].out, 0, "token");
  const std::string job = value_of(results[0].out, 0, "job");
  const std::string place = value_of(results[0].out, 0, "place");
  for (int machine = 0; machine < 3; ++machine) {
    const Finished& result = results[static_cast<std::size_t>(machine)];
    EXPECT_EQ(result.code, 0) << result.err;
    const int locals = ranks[static_cast<std::size_t>(machine)];
    for (int local = 0; local < locals; ++local, ++rank) {
      EXPECT_EQ(value_of(result.out, rank, "rank"), std::to_string(rank)) << result.out;
      EXPECT_EQ(value_of(result.out, rank, "size"), "6");
      EXPECT_EQ(value_of(result.out, rank, "local"), std::to_string(local));
      EXPECT_EQ(value_of(result.out, rank, "locals"), std::to_string(locals));
      EXPECT_EQ(value_of(result.out, rank, "node"), std::to_string(machine));
      EXPECT_EQ(value_of(result.out, rank, "nodes"), "3");
      EXPECT_EQ(value_of(result.out, rank, "job"), job);
      EXPECT_EQ(value_of(result.out, rank, "token"), token);
      EXPECT_EQ(value_of(result.out, rank, "place"), place);
      EXPECT_EQ(value_of(result.out, rank, "fd") == "none", rank != 0);
    }
  }
  EXPECT_EQ(token.size(), 64U);
  EXPECT_EQ(testing::run_program({"python3",
                                  "-c",
                                  "import hmac, sys; print(hmac.new(b'a secret of the tests', "
                                  "b'ranks of ' + sys.argv[1].encode(), 'sha256').hexdigest())",
                                  job})
                .out,
            token + "\n");
  EXPECT_NE(place, machines.place());
}

TEST(Fleet, RankZeroListensBeforeItIsStarted) {
  const Launchers machines(2);
  // Connects to the place that its variable names; rank 0 says what came in at its descriptor.
  const char* script = R"(exec python3 -c '
import os, socket
host, _, port = os.environ["TRIREME_RENDEZVOUS"].rpartition(":")
if os.environ["TRIREME_RANK"] == "0":
    listener = socket.socket(fileno=int(os.environ["TRIREME_RENDEZVOUS_FD"]))
    listener.setblocking(True)
    assert listener.getsockname() == (host, int(port)), listener.getsockname()
    for _ in range(2):
        with listener.accept()[0] as connection:
            print("heard", connection.recv(100).decode(), flush=True)
else:
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(("rank " + os.environ["TRIREME_RANK"]).encode())
')";
  const auto results = machines.run({1, 2}, script);
  EXPECT_EQ(results[0].code, 0) << results[0].err;
  EXPECT_EQ(results[1].code, 0) << results[1].err;
  expect_parts(results[0].out, {"[0] heard rank 1", "[0] heard rank 2"});
}

TEST(Fleet, LabelsAndLogsByWorldRank) {
  const testing::TemporaryFolder folder;
  const Launchers machines(2);
  const auto results = machines.run({1, 2},
                                    "echo I am $TRIREME_RANK by $TRIREME_BACKEND "
                                    "$TRIREME_ALGORITHM $TRIREME_SUM_GROUP $TRIREME_INTERFACES",
                                    {"--log-dir",
                                     folder.path(),
                                     "--backend",
                                     "ucx",
                                     "--algorithm",
                                     "ring",
                                     "--sum-group",
                                     "2",
                                     "--interfaces",
                                     "lo,lo"});
  expect_parts(results[0].out, {"[0] I am 0 by ucx ring 2 lo,lo\n"});
  expect_parts(results[1].out, {"[1] I am 1 by ucx", "[2] I am 2 by ucx"});
  for (int rank = 0; rank < 3; ++rank) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(testing::read_file(folder.path() + "/rank-" + number + ".log"),
              "I am " + number + " by ucx ring 2 lo,lo\n");
  }
}

TEST(Fleet, OneMachineNeedsNoMeetingAndKnowsNothingOfAnotherJob) {
  const Finished result =
      testing::run_program({trireme_binary(),
                            "run",
                            "-n",
                            "1",
                            "--backend",
                            "shm",
                            "--",
                            "/bin/sh",
                            "-c",
                            "echo $TRIREME_BACKEND ${TRIREME_NODES-no} ${TRIREME_RENDEZVOUS-no} "
                            "${TRIREME_NODE_RANK-no}"},
                           {"TRIREME_NODES=4", "TRIREME_RENDEZVOUS=a:1", "TRIREME_NODE_RANK=3"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "[0] shm no no no\n");
}

TEST(Fleet, NamesARankThatFailsOnEveryMachine) {
  const Launchers machines(3);
  const auto results = machines.run({1, 2, 1},
                                    "if [ $TRIREME_RANK = 2 ]; then echo the disk is on fire >&2; "
                                    "exit 7; fi; sleep 100");
  for (const Finished& result : results) {
    EXPECT_EQ(result.code, 3);
    expect_parts(result.err,
                 {"machine 1 (",
                  "): rank 2 of 4 (pid ",
                  "failed with exit code 7",
                  "last words of rank 2:",
                  "the disk is on fire"});
  }
  machines.expect_nothing_left();
}

TEST(Fleet, NamesTheCauseAndNotARankThatBlamesIt) {
  // Rank 0 fails first, and tells its launcher that rank 1 is the reason.
  const Launchers machines(2);
  const auto results = machines.run({1, 1},
                                    "if [ $TRIREME_RANK = 0 ]; then "
                                    "echo 0 1 0 > /proc/self/fd/${TRIREME_REPORT%%:*}; exit 5; fi; "
                                    "trap '' TERM; sleep 0.3; exit 6");
  for (const Finished& result : results) {
    EXPECT_EQ(result.code, 3);
    expect_parts(result.err, {"trireme: machine 1 (", "rank 1 of 2", "exit code 6"});
    expect_no_part(result.err, "exit code 5");
  }
}

TEST(Fleet, AMachineThatIsDoneHearsOfALateFailure) {
  const Launchers machines(2);
  const auto early = machines.start({0, 1, "echo done"});
  const auto late = machines.start({1, 1, "sleep 1; exit 9"});
  const Finished first = early->wait(milliseconds(30'000));
  EXPECT_EQ(first.code, 3);
  expect_parts(first.err, {"machine 1 (", "rank 1 of 2", "exit code 9"});
  EXPECT_EQ(late->wait(milliseconds(30'000)).code, 3);
}

TEST(Fleet, RanksThatDidNotFindEachOtherGiveCodeFourEverywhere) {
  const Launchers machines(2);
  const auto results =
      machines.run({1, 1},
                   "if [ $TRIREME_RANK = 1 ]; then "
                   "echo 1 -1 1 > /proc/self/fd/${TRIREME_REPORT%%:*}; exit 1; fi; "
                   "sleep 100");
  EXPECT_EQ(results[0].code, 4);
  EXPECT_EQ(results[1].code, 4);
}

TEST(Fleet, AKilledLauncherEndsTheJob) {
  for (const int killed : {0, 1}) {
    const Launchers machines(3);
    std::vector<std::unique_ptr<Program>> programs;
    for (int machine = 0; machine < 3; ++machine) {
      programs.push_back(machines.start({machine, 1, "echo ready; exec sleep 100"}));
    }
    for (const auto& program : programs) {
      ASSERT_TRUE(program->wait_for_output("ready"));
    }
    kill(programs[static_cast<std::size_t>(killed)]->pid(), SIGKILL);
    for (int machine = 0; machine < 3; ++machine) {
      const Finished result =
          programs[static_cast<std::size_t>(machine)]->wait(milliseconds(30'000));
      if (machine != killed) {
        EXPECT_EQ(result.code, 3);
        expect_parts(result.err,
                     {"machine " + std::to_string(killed) + " (",
                      ") is gone: its launcher was killed or the machine went down"});
      }
    }
    machines.expect_nothing_left();
  }
}

// A machine that comes back may be there before the end of its old connection is: whose place it
// wants is refused only when the one that has it is still heard from after a while.
TEST(Fleet, AMachineThatComesBackIsLetInWhenItsOldConnectionEnds) {
  const Launchers machines(2);
  const std::vector<std::string> elastic = {
      "--elastic", "1:2", "--restart", "9", "--heartbeat", "5", "--stall", "2"};
  const std::string script = "echo ready; exec sleep 100";
  const auto leader = machines.start({0, 1, script, elastic});
  const auto before = machines.start({1, 1, script, elastic});
  ASSERT_TRUE(leader->wait_for_output("ready"));
  ASSERT_TRUE(before->wait_for_output("ready"));
  const auto after = machines.start({1, 1, script, elastic});
  std::this_thread::sleep_for(milliseconds(2000));  // in which it asks again and again
  kill(before->pid(), SIGKILL);
  EXPECT_TRUE(after->wait_for_output("ready"));

  const auto stranger = machines.start({1, 1, script, elastic});
  const Finished refused = stranger->wait(milliseconds(60'000));
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"--node-rank 1 is already taken by "});

  for (const auto& launcher : {after.get(), leader.get()}) {
    kill(launcher->pid(), SIGKILL);
  }
  expect_no_part(after->wait(milliseconds(30'000)).err, "already taken");
  expect_parts(leader->wait(milliseconds(30'000)).err, {") has come, with 1 rank"});
  machines.expect_nothing_left();
}

TEST(Fleet, AStoppedLauncherIsSilentAndThenEndsTheJob) {
  const Launchers machines(3);
  std::vector<std::unique_ptr<Program>> programs;
  for (int machine = 0; machine < 3; ++machine) {
    programs.push_back(machines.start({machine, 1, "echo ready; sleep 100", {"--timeout", "3"}}));
  }
  for (const auto& program : programs) {
    ASSERT_TRUE(program->wait_for_output("ready"));
  }
  kill(programs[1]->pid(), SIGSTOP);
  for (const std::size_t machine : {0, 2}) {
    const Finished result = programs[machine]->wait(milliseconds(30'000));
    EXPECT_EQ(result.code, 3);
    expect_parts(result.err,
                 {"warning: machine 1 (",
                  ") has not been heard from for ",
                  "trireme: machine 1 (",  // without a warning: it is given up
                  "its launcher is stopped, or the network in between is cut"});
  }
  // When it goes on, it learns that the job is over.
  kill(programs[1]->pid(), SIGCONT);
  EXPECT_EQ(programs[1]->wait(milliseconds(30'000)).code, 3);
  machines.expect_nothing_left();
}

TEST(Fleet, ASilentMachineIsNamedBesideTheRankThatMissesIt) {
  const Launchers machines(2);
  const auto first = machines.start(
      {0,
       1,
       "echo ready; sleep 5; echo 0 1 0 > /proc/self/fd/${TRIREME_REPORT%%:*}; exit 5",
       {"--timeout", "3"}});
  const auto second = machines.start({1, 1, "echo ready; sleep 100", {"--timeout", "3"}});
  ASSERT_TRUE(first->wait_for_output("ready"));
  ASSERT_TRUE(second->wait_for_output("ready"));
  kill(second->pid(), SIGSTOP);
  const Finished result = first->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err, {"rank 0 of 2", "exit code 5", "trireme: machine 1 ("});
  kill(second->pid(), SIGCONT);
  EXPECT_EQ(second->wait(milliseconds(30'000)).code, 3);
  machines.expect_nothing_left();
}

TEST(Fleet, ALauncherThatGoesOnInTimeIsHeardOfAgain) {
  const Launchers machines(2);
  const auto first = machines.start({0, 1, "echo ready; sleep 6", {"--timeout", "3"}});
  const auto second = machines.start({1, 1, "echo ready; sleep 6", {"--timeout", "3"}});
  ASSERT_TRUE(first->wait_for_output("ready"));
  ASSERT_TRUE(second->wait_for_output("ready"));
  kill(second->pid(), SIGSTOP);
  std::this_thread::sleep_for(milliseconds(4500));  // longer than the silence that is warned of
  kill(second->pid(), SIGCONT);
  const Finished result = first->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 0) << result.err;
  expect_parts(result.err, {"has not been heard from for ", "was heard from again"});
  // The one that was stopped has heard of the other all the time.
  const Finished resumed = second->wait(milliseconds(30'000));
  EXPECT_EQ(resumed.code, 0);
  EXPECT_EQ(resumed.err, "");
}

TEST(Fleet, LaunchersOfAQuietJobHearOfEachOther) {
  // Nothing happens for longer than the silence that is warned of.
  const auto results = Launchers(2).run({1, 1}, "sleep 4", {"--timeout", "3"});
  for (const Finished& result : results) {
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
  }
}

TEST(Fleet, ASignalToOneLauncherEndsTheJob) {
  for (const std::size_t stopped : {0, 2}) {
    const Launchers machines(3);
    std::vector<std::unique_ptr<Program>> programs;
    for (int machine = 0; machine < 3; ++machine) {
      programs.push_back(machines.start(
          {machine,
           1,
           "trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.05; done"}));
    }
    for (const auto& program : programs) {
      ASSERT_TRUE(program->wait_for_output("ready"));
    }
    kill(programs[stopped]->pid(), SIGINT);
    for (std::size_t machine = 0; machine < 3; ++machine) {
      const Finished result = programs[machine]->wait(milliseconds(30'000));
      expect_parts(result.out, {"caught"});
      if (machine == stopped) {
        EXPECT_EQ(result.code, 128 + SIGINT);
        expect_parts(result.err, {"trireme: stopped by signal 2"});
      } else {
        EXPECT_EQ(result.code, 3);
        expect_parts(result.err,
                     {"machine " + std::to_string(stopped) + " (", ") was stopped by signal 2"});
      }
    }
    machines.expect_nothing_left();
  }
}

TEST(Fleet, AMachineThatCannotStartItsRanksDoesNotHoldUpTheOthers) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/broken";
  std::ofstream(path) << "this is no program\n";
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  const Launchers machines(2);
  const auto first = machines.start({0, 1, "sleep 100"});
  auto words = machines.command(1, 1);
  words.insert(words.end(), {"--", path});
  Program second(words, {kSecret});
  EXPECT_EQ(second.wait(milliseconds(30'000)).code, 2);
  const Finished result = first->wait(milliseconds(30'000));
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err, {"machine 1 (", ") could not start its ranks: ", "broken"});
  machines.expect_nothing_left();
}

}  // namespace
}  // namespace trireme
