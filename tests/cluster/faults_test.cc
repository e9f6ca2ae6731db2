// Machines that are cut off, killed or stopped in the middle of a job, ranks that die or leave, and
// jobs that cannot begin: who is told what, by when, and how the launchers end.

#include <array>
#include <chrono>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include "cluster/machine_job.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme {
namespace {

using detail::concat;
using testing::expect_parts;
using testing::Finished;
using testing::kToken;
using testing::MachineJob;
using testing::Machines;
using testing::read_file;

using Clock = std::chrono::steady_clock;

// What a job may take to end after its deadline of 5 s: promised is the deadline for the ranks, and
// then the time in which launchers end what is left.
constexpr auto kEnd = std::chrono::seconds(5 + 7 + 20);  // and a slow machine

class FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* feature : {"", "switch", "cut"}) {
      if (const auto reason = Machines::unavailable(feature)) {
        GTEST_SKIP() << *reason;
      }
    }
  }

  // A summary lists every rank, whether it answered or not.
  static void expect_summary(const MachineJob& job, int machine, int ranks) {
    const std::string summary = read_file(job.folder(machine) + "/flight-summary.txt");
    for (int rank = 0; rank < ranks; ++rank) {
      expect_parts(summary, {concat("\nrank ", rank, " (pid ")});
    }
    expect_parts(summary, {"issued #", "completed #", "did not answer"});
  }

  // The ranks [begin, end) of a machine that lives on blame somebody of `lost`, by the deadline.
  static void expect_blame(
      const MachineJob& job, const Finished& result, int begin, int end, int of, int lost) {
    EXPECT_EQ(result.code, 3) << result.err;
    for (int rank = begin; rank < end; ++rank) {
      expect_parts(result.err, {concat("[", rank, "] rank ", rank, " of ", of, ": #")});
    }
    expect_parts(result.err, {job.on(lost), "last operation of rank", "flight record: "});
  }
};

// (ranks of machine 0, of machine 1)
class LostMachineTest : public FaultsTest, public ::testing::WithParamInterface<int> {};

TEST_P(LostMachineTest, ACutLinkIsNamedOnBothSidesByTheDeadline) {
  const int per = GetParam();
  MachineJob job({per, per});
  job.start_all("loop");
  ASSERT_TRUE(job.wait_until_looping());
  const auto start = Clock::now();
  job.machines().cut(1);
  for (const int machine : {0, 1}) {
    const Finished result = job.wait(machine);
    EXPECT_LT(Clock::now() - start, kEnd);
    expect_blame(job, result, machine * per, (machine + 1) * per, 2 * per, 1 - machine);
    expect_parts(result.err,
                 {"waited ",
                  "cut off from the network; trireme doctor",
                  "warning: " + job.title(1 - machine) + " has not been heard from for",
                  "the network in between is cut",
                  "trireme: " + job.title(machine) + ": rank ",
                  "trireme: " + job.title(1 - machine) + " has not been heard from"});
    expect_summary(job, machine, 2 * per);
  }
  job.expect_nothing_left();
}

TEST_P(LostMachineTest, AKilledMachineIsNamedAtOnce) {
  const int per = GetParam();
  MachineJob job({per, per});
  job.start_all("loop");
  ASSERT_TRUE(job.wait_until_looping());
  const auto start = Clock::now();
  job.machines().kill(1);
  const Finished result = job.wait(0);
  EXPECT_LT(Clock::now() - start, kEnd);
  expect_blame(job, result, 0, per, 2 * per, 1);
  expect_parts(result.err,
               {"is lost (",
                "it crashed or was killed, or its machine is gone",
                job.title(1) + " is gone: its launcher was killed or the machine went down"});
  expect_summary(job, 0, 2 * per);
  job.expect_nothing_left();
}

TEST_P(LostMachineTest, AMachineThatLosesPowerIsNamedByTheDeadline) {
  const int per = GetParam();
  MachineJob job({per, per});
  job.start_all("loop");
  ASSERT_TRUE(job.wait_until_looping());
  const auto start = Clock::now();
  job.machines().cut(1);
  job.machines().kill(1);
  const Finished result = job.wait(0);
  EXPECT_LT(Clock::now() - start, kEnd);
  expect_blame(job, result, 0, per, 2 * per, 1);
  expect_parts(result.err, {"trireme: " + job.title(1) + " has not been heard from"});
  expect_summary(job, 0, 2 * per);
  job.expect_nothing_left();
}

TEST_P(LostMachineTest, AStoppedMachineIsNamedByTheDeadline) {
  const int per = GetParam();
  MachineJob job({per, per});
  job.start_all("loop");
  ASSERT_TRUE(job.wait_until_looping());
  const auto start = Clock::now();
  job.machines().kill(1, SIGSTOP);
  const Finished result = job.wait(0);
  EXPECT_LT(Clock::now() - start, kEnd);
  expect_blame(job, result, 0, per, 2 * per, 1);
  expect_parts(result.err,
               {"waited ", "its launcher is stopped", job.title(1) + " has not been heard from"});
  expect_summary(job, 0, 2 * per);
  // When it goes on, it learns that the job is over.
  job.machines().kill(1, SIGCONT);
  EXPECT_EQ(job.wait(1).code, 3);
  job.expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(RanksPerMachine, LostMachineTest, ::testing::Values(1, 2));

TEST_F(FaultsTest, TheOthersOfThreeNameTheMachineThatIsCutOff) {
  MachineJob job({1, 1, 1});
  job.start_all("loop");
  ASSERT_TRUE(job.wait_until_looping());
  job.machines().cut(2);
  for (const int machine : {0, 1}) {
    const Finished result = job.wait(machine);
    expect_blame(job, result, machine, machine + 1, 3, 2);
  }
  EXPECT_EQ(job.wait(2).code, 3);
  // Whoever found it first has gathered what the other that can be reached did last.
  const std::string summary = read_file(job.folder(0) + "/flight-summary.txt") +
                              read_file(job.folder(1) + "/flight-summary.txt");
  expect_parts(
      summary,
      {job.on(0) + ": issued #", job.on(1) + ": issued #", job.on(2) + ": did not answer"});
  job.expect_nothing_left();
}

TEST_F(FaultsTest, AKilledRankIsNamedOnBothMachines) {
  for (const int per : {1, 2}) {
    MachineJob job({per, per});
    job.start_all("loop");
    ASSERT_TRUE(job.wait_until_looping());
    const pid_t victim = job.program(1).children().back();
    const int rank = 2 * per - 1;
    const auto start = Clock::now();
    kill(victim, SIGKILL);
    const std::string name = concat("rank ", rank, " (pid ", victim, " ", job.on(1));
    for (const int machine : {0, 1}) {
      const Finished result = job.wait(machine);
      EXPECT_LT(Clock::now() - start, kEnd);
      EXPECT_EQ(result.code, 3);
      expect_parts(
          result.err,
          {concat("trireme: ", job.title(1), ": rank ", rank, " of ", 2 * per), "signal 9"});
      if (machine == 0 || per > 1) {
        expect_parts(result.err, {name});
      }
    }
    // On the machine of whoever found it, which may be either.
    const std::string summary = read_file(job.folder(0) + "/flight-summary.txt") +
                                read_file(job.folder(1) + "/flight-summary.txt");
    for (int peer = 0; peer < 2 * per; ++peer) {
      expect_parts(summary, {concat("\nrank ", peer, " (pid ")});
    }
    expect_parts(summary, {"\n" + name + ": did not answer", "issued #"});
    job.expect_nothing_left();
  }
}

TEST_F(FaultsTest, AStoppedRankIsNamedByEveryoneByTheDeadline) {
  MachineJob job({2, 2});
  job.start_all("loop");
  ASSERT_TRUE(job.wait_until_looping());
  const pid_t victim = job.program(1).children().back();
  kill(victim, SIGSTOP);
  for (const int machine : {0, 1}) {
    const Finished result = job.wait(machine);
    EXPECT_EQ(result.code, 3);
    expect_parts(result.err, {concat("rank 3 (pid ", victim, " ", job.on(1)), "waited "});
  }
  job.expect_nothing_left();
}

TEST_F(FaultsTest, ARankThatLeavesIsNamed) {
  for (const int per : {1, 2}) {
    MachineJob job({per, per});
    job.start_all("leave");
    const Finished result = job.wait(0);
    EXPECT_EQ(result.code, 3);
    expect_parts(result.err,
                 {concat("[0] rank 0 of ", 2 * per, ": #1 barrier"),
                  "rank 1 (pid ",
                  job.on(per == 1 ? 1 : 0),
                  "left the world while others were still waiting for it"});
    const Finished other = job.wait(1);
    EXPECT_EQ(other.code, 3);  // also where its rank succeeded: the job did not
    if (per == 2) {
      expect_parts(other.err, {"rank 1 (pid ", job.on(0), "left the world"});
    }
    job.expect_nothing_left();
  }
}

TEST_F(FaultsTest, RanksOfDifferentProgramsRefuseEachOther) {
  MachineJob job({1, 1});
  job.start(0, "hello", {kToken, "TRIREME_PROGRAM_VERSION=1.0"});
  job.start(1, "hello", {kToken, "TRIREME_PROGRAM_VERSION=1.1"});
  for (const int machine : {0, 1}) {
    const Finished result = job.wait(machine);
    EXPECT_EQ(result.code, 3);
    expect_parts(result.err,
                 {"refused rank 1 of 2",
                  "it runs program version \"1.1\"",
                  "rank 0 runs \"1.0\"",
                  "start the same build everywhere",
                  job.title(1) + ": rank 1 of 2"});
  }
  job.expect_nothing_left();
}

TEST_F(FaultsTest, RanksThatWouldAddUpDifferentlyRefuseEachOther) {
  MachineJob job({1, 1});
  job.start(0, "hello", {kToken, "TRIREME_SUM_GROUP=1"});
  job.start(1, "hello", {kToken, "TRIREME_SUM_GROUP=2"});
  for (const int machine : {0, 1}) {
    const Finished result = job.wait(machine);
    EXPECT_EQ(result.code, 3);
    expect_parts(result.err,
                 {"refused rank 1 of 2",
                  "it was told to sum groups of 2 ranks first",
                  "rank 0 groups of 1",
                  "give the same --sum-group (TRIREME_SUM_GROUP)"});
  }
  job.expect_nothing_left();
}

TEST_F(FaultsTest, AWrongTokenIsRefused) {
  MachineJob job({1, 1});
  job.start(0, "hello", {kToken});
  job.start(1, "hello", {"TRIREME_TOKEN=another secret"});
  const Finished refused = job.wait(1);
  EXPECT_EQ(refused.code, 2);
  expect_parts(refused.err, {"its token is not that of", "TRIREME_TOKEN"});
  const Finished result = job.wait(0);
  EXPECT_EQ(result.code, 4);
  expect_parts(result.err, {"missing: 1", "its token is not that of"});
  EXPECT_EQ((refused.err + result.err).find("another secret"), std::string::npos);
  job.expect_nothing_left();
}

TEST_F(FaultsTest, APortInUseIsNamed) {
  MachineJob job({1, 1});
  FileDescriptor other;
  job.machines().inside(0, [&] { other = FileDescriptor(socket(AF_INET, SOCK_STREAM, 0)); });
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(29500);
  ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  job.start(0, "hello");
  const Finished result = job.wait(0);
  EXPECT_EQ(result.code, 2);
  expect_parts(result.err, {"29500", "in use", "--rendezvous"});
}

TEST_F(FaultsTest, ANameThatDoesNotResolveIsNamed) {
  MachineJob job({1, 1});
  job.place = "no-such-machine.invalid:29500";
  for (const int machine : {0, 1}) {
    job.start(machine, "hello");
    const Finished result = job.wait(machine);
    EXPECT_EQ(result.code, 2);
    expect_parts(result.err, {"no-such-machine.invalid", "--rendezvous"});
  }
}

TEST_F(FaultsTest, AnInterfaceThatDoesNotExistIsNamed) {
  MachineJob job({1, 1});
  job.options.insert(job.options.end(), {"--interfaces", "nonsense0"});
  job.start_all("hello");
  for (const int machine : {0, 1}) {
    const Finished result = job.wait(machine);
    EXPECT_EQ(result.code, 2);
    expect_parts(result.err, {"--interfaces", "eth0", "found \"nonsense0\""});
  }
  job.expect_nothing_left();
}

TEST_F(FaultsTest, AMachineThatDoesNotComeIsNamed) {
  MachineJob job({1, 1, 1});
  job.start(0, "hello");
  job.start(2, "hello");
  for (const int machine : {0, 2}) {
    const Finished result = job.wait(machine);
    EXPECT_EQ(result.code, 4);
    expect_parts(result.err,
                 {"2 of 3 reached " + job.place, "missing: 1", "--node-rank", "(firewall)"});
  }
  job.expect_nothing_left();
}

}  // namespace
}  // namespace trireme
