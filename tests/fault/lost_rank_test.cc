// Ranks that die, stop, leave or do something else in the middle of collectives.

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::Finished;
using testing::Program;
using testing::test_binary;
using testing::trireme_binary;

std::vector<std::string> job(int ranks,
                             const std::string& mode,
                             const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {trireme_binary(), "run", "-n", std::to_string(ranks)};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"--", test_binary("worker"), mode});
  return command;
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

TEST(LostRank, AKilledRankIsNamedByTheOthersAtOnce) {
  const testing::TemporaryFolder folder;
  Program program(job(3, "loop", {"--log-dir", folder.path()}));
  ASSERT_TRUE(program.wait_for_output("looping", 3));
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 3U);
  kill(ranks[1], SIGKILL);
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err,
               {"trireme: rank 1 of 3",
                "signal 9",
                detail::concat("rank 1 (pid ", ranks[1], ") ended without leaving the world"),
                "last operations:"});
  // Each survivor has spoken and written its record, unless it did not run for so long that the
  // launcher has ended it before; and one of them the summary for all.
  int spoke = 0;
  for (const char* rank : {"0", "2"}) {
    if (result.err.find(detail::concat("[", rank, "] rank ", rank, " of 3")) == std::string::npos) {
      continue;
    }
    ++spoke;
    expect_parts(testing::read_file(detail::concat(folder.path(), "/flight-rank-", rank, ".json")),
                 {"\"op\": \"all_reduce\"", "\"state\": \"finished\""});
  }
  EXPECT_GT(spoke, 0);
  expect_parts(testing::read_file(folder.path() + "/flight-summary.txt"),
               {detail::concat("rank 1 (pid ", ranks[1], ", ended)"), "issued #", "completed #"});
}

// While the job runs, somebody puts a link where its records will go. They are not written through
// it; every survivor still fails with the reason, and says what was refused.
TEST(LostRank, RecordsAreNotWrittenThroughALinkThatSomebodyPutThere) {
  const testing::TemporaryFolder temporary;
  const testing::TemporaryFolder elsewhere;
  Program program(job(3, "loop"), {"TMPDIR=" + temporary.path()});
  ASSERT_TRUE(program.wait_for_output("looping", 3));
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 3U);
  const std::string planted = detail::concat(temporary.path(), "/trireme-", geteuid());
  std::filesystem::create_directory_symlink(elsewhere.path(), planted);
  kill(ranks[1], SIGKILL);
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err,
               {detail::concat("rank 1 (pid ", ranks[1], ") ended without leaving the world"),
                "no flight record: expected a folder of this user at " + planted,
                "TRIREME_LOG_DIR"});
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path()));
}

TEST(LostRank, AStoppedRankIsNamedAtTheDeadline) {
  const testing::TemporaryFolder folder;
  const std::string mark = testing::unique_mark();
  Program program(job(3, "loop", {"--timeout", "5", "--log-dir", folder.path()}), {mark});
  ASSERT_TRUE(program.wait_for_output("looping", 3));
  const auto ranks = program.children();
  ASSERT_EQ(ranks.size(), 3U);
  kill(ranks[2], SIGSTOP);
  const Finished result = program.wait();
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err,
               {"waited ", detail::concat("rank 2 (pid ", ranks[2], ", stopped by a signal)")});
  expect_parts(testing::read_file(folder.path() + "/flight-summary.txt"),
               {"rank 2 (pid", "stopped by a signal"});
  EXPECT_TRUE(testing::processes_with(mark).empty());
}

TEST(LostRank, ARankThatLeavesIsMissedByThoseWhoWaitForIt) {
  const Finished result = testing::run_program(job(3, "leave"));
  EXPECT_EQ(result.code, 3);
  expect_parts(result.err, {"rank 1 (pid", "left the world", "barrier()"});
}

TEST(LostRank, MismatchedCallsAreNamedByTheLauncherToo) {
  const Finished result = testing::run_program(job(2, "mismatch"));
  EXPECT_EQ(result.code, 3);
  expect_parts(
      result.err,
      {"all_reduce(sum, float32 x 10)", "broadcast(float32 x 10, root 0)", "trireme: rank"});
}

// Deaths at random moments, from before the rendezvous to the middle of collectives.
TEST(LostRank, NothingIsLeftBehindByKills) {
  const char* asked = std::getenv("TRIREME_TEST_KILLS");
  const int kills = asked == nullptr ? 50 : std::stoi(asked);
  const std::string mark = testing::unique_mark();
  std::mt19937 random(20260801);
  for (int i = 0; i < kills; ++i) {
    const int ranks = 2 + static_cast<int>(random() % 3);
    Program program(job(ranks, "loop"), {mark});
    if (i % 10 == 0) {  // on a slow machine, too, some of them are in the middle
      ASSERT_TRUE(program.wait_for_output("looping", ranks)) << i;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    std::vector<pid_t> pids = program.children();
    for (int tries = 0; pids.empty() && tries < 1000; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pids = program.children();
    }
    ASSERT_FALSE(pids.empty());
    kill(pids[random() % pids.size()], SIGKILL);
    const Finished result = program.wait();
    // A rank killed between fork and exec is a program that could not be started.
    EXPECT_TRUE(result.code == 3 || result.code == 2)
        << i << ": " << result.code << " " << result.err;
    ASSERT_TRUE(testing::processes_with(mark).empty()) << i;
  }
  // The memory has no name anywhere; it lives only in processes, and none is left. (Folders are
  // those of other tests, which have their files there, and of records of failures.)
  std::error_code gone;  // what others remove meanwhile
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_TRUE(entry.is_directory(gone) || gone ||
                entry.path().string().find("trireme") == std::string::npos)
        << entry.path();
  }
}

}  // namespace
}  // namespace trireme
