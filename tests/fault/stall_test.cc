// A rank that makes no progress is found and named, and neither one that says that it gets on nor
// one that waits for another is. The times are such that a rank which only waits for a processor on
// a machine under load is not taken for one that stands still.

#include <chrono>
#include <csignal>
#include <regex>
#include <thread>

#include <gtest/gtest.h>

#include "support/processes.h"

namespace trireme::stall_test {
namespace {

using testing::Finished;
using testing::Program;
using testing::run_program;

class Stalls : public ::testing::Test {
 protected:
  std::vector<std::string> command(const std::string& mode, std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {testing::trireme_binary(), "run"});
    flags.insert(flags.end(),
                 {"--", testing::test_binary("stalling_worker"), mode, folder_.path() + "/once"});
    return flags;
  }
  Finished run(const std::string& mode, const std::vector<std::string>& flags) const {
    return run_program(command(mode, flags));
  }
  static std::string weights(const Finished& done) {
    std::smatch found;
    const std::regex words("weights [0-9a-f]{16}");
    return std::regex_search(done.out, found, words) ? found.str() : "none in: " + done.out;
  }
  // "rank R of N", for each rank that was said to make no progress.
  static std::vector<std::string> blamed(const Finished& done) {
    std::vector<std::string> all;
    const std::regex words("(rank \\d+ of \\d+) \\(pid \\d+\\) has made no progress");
    for (std::sregex_iterator at(done.err.begin(), done.err.end(), words), end; at != end; ++at) {
      all.push_back((*at)[1]);
    }
    return all;
  }
  static void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Stalls, AnEndlessLoopIsEndedAndTheOthersGoOn) {
  const std::string calm = weights(run("calm", {"-n", "1"}));
  const Finished done = run("loop", {"--elastic", "1:3", "--stall", "3"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(blamed(done), std::vector<std::string>{"rank 2 of 3"}) << done.err;
  expect_has(done.err, "for 3 s, in step 6; the last thing it did: it kept its state: ending it");
  expect_has(done.err, "was killed by signal 9 (Killed): going on with 2 ranks");
  EXPECT_EQ(weights(done), calm);
}

TEST_F(Stalls, AnotherIsStartedInItsPlace) {
  const Finished done = run("loop", {"-n", "2", "--restart", "1", "--stall", "3"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(blamed(done), std::vector<std::string>{"rank 1 of 2"}) << done.err;
  expect_has(done.err, "starting it again (0 restarts left)");
  EXPECT_EQ(weights(done), weights(run("calm", {"-n", "1"})));
}

TEST_F(Stalls, ALongStepThatSaysSoIsNone) {
  const Finished done = run("long", {"--elastic", "1:3", "--stall", "3"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(blamed(done), std::vector<std::string>{}) << done.err;
  EXPECT_EQ(weights(done), weights(run("calm", {"-n", "1"})));
}

TEST_F(Stalls, InOtherJobsTheRankIsNamedOnce) {
  const Finished done = run("loop", {"-n", "3", "--stall", "3", "--timeout", "8"});
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_EQ(blamed(done), std::vector<std::string>{"rank 2 of 3"}) << done.err;
  expect_has(done.err, "the others wait for it until --timeout");
}

// A laptop whose lid is closed: what the ranks have not done meanwhile does not count.
TEST_F(Stalls, TimeInWhichTheLauncherWasStoppedDoesNotCount) {
  Program program(command("silent", {"--elastic", "1:2", "--stall", "5"}));
  ASSERT_TRUE(program.wait_for_output("silent"));
  kill(program.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(6500));
  kill(program.pid(), SIGCONT);
  const Finished done = program.wait();
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(blamed(done), std::vector<std::string>{}) << done.err;
}

// A pager.
TEST_F(Stalls, ARankWhoseOutputNobodyReadsIsNotBlamed) {
  const Finished done = run_program({"/bin/bash",
                                     "-c",
                                     "set -o pipefail; \"$@\" | (sleep 7; grep weights)",
                                     "bash",
                                     testing::trireme_binary(),
                                     "run",
                                     "--elastic",
                                     "1:2",
                                     "--stall",
                                     "3",
                                     "--",
                                     testing::test_binary("stalling_worker"),
                                     "talk",
                                     "-"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(blamed(done), std::vector<std::string>{}) << done.err;
  EXPECT_EQ(weights(done), weights(run("calm", {"-n", "1"})));
}

}  // namespace
}  // namespace trireme::stall_test
