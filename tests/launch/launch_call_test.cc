// launch() as a call of a program that has processes of its own.

#include <fstream>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"

namespace trireme {
namespace {

using testing::message_of;
using testing::processes_with;
using testing::read_file;
using testing::TemporaryFolder;

// A child of the test, which dies with it.
pid_t start(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
  }
  return pid;
}

pid_t start_shell(const std::string& script) {
  return start([&] { execl("/bin/sh", "sh", "-c", script.c_str(), nullptr); });
}

// Until a process can be waited for, without doing it.
void await_end(pid_t pid) {
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
}

bool is_child(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

LaunchOptions shells(int ranks, const std::string& script) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"/bin/sh", "-c", script};
  return options;
}

int is_subreaper() {
  int value = -1;
  EXPECT_EQ(prctl(PR_GET_CHILD_SUBREAPER, &value), 0);
  return value;
}

TEST(LaunchCall, LeavesChildrenOfItsCallerAlone) {
  const pid_t living = start([] {
    for (;;) {
      pause();
    }
  });
  const pid_t ended = start([] { _exit(7); });
  await_end(ended);
  EXPECT_EQ(launch(shells(2, "exit 0")), kExitOk);
  EXPECT_EQ(launch(shells(2, "exit $TRIREME_RANK")), kExitRankFailed);

  int status = 0;
  EXPECT_EQ(waitpid(living, &status, WNOHANG), 0) << "it still runs";
  EXPECT_EQ(waitpid(ended, &status, WNOHANG), ended) << "somebody has waited for it";
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  kill(living, SIGTERM);
  EXPECT_EQ(waitpid(living, &status, 0), living);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM) << "nobody else has killed it";
}

TEST(LaunchCall, EndsWhatRanksLeaveBehindBesideThem) {
  const pid_t living = start([] {
    for (;;) {
      pause();
    }
  });
  const std::string mark = testing::unique_mark();
  LaunchOptions options = shells(2, "setsid sleep 1000 >/dev/null 2>&1 & exit 0");
  options.environment = {mark};
  EXPECT_EQ(launch(options), kExitOk);
  EXPECT_TRUE(processes_with(mark).empty());
  EXPECT_EQ(waitpid(living, nullptr, WNOHANG), 0);
  kill(living, SIGKILL);
  EXPECT_EQ(waitpid(living, nullptr, 0), living);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no child is left, not even an ended one";
}

TEST(LaunchCall, EndsWhatRanksLeaveBehindWithoutAnEnvironment) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/pid";
  EXPECT_EQ(
      launch(shells(1, "env -i setsid sleep 1000 >/dev/null 2>&1 & echo $! >" + file + "; exit 0")),
      kExitOk);
  const pid_t left = std::stoi(read_file(file));
  EXPECT_NE(kill(left, 0), 0) << "it still runs";
}

// A child of the caller ends while ranks run, and leaves a process that has nothing to do with
// them.
TEST(LaunchCall, LeavesAloneWhatAChildOfItsCallerLeavesBehind) {
  const TemporaryFolder folder;
  const std::string begun = folder.path() + "/begun";
  const std::string left = folder.path() + "/left";
  const auto wait_for_file = [](const std::string& file) {
    return "while [ ! -e " + file + " ]; do sleep 0.01; done; ";
  };
  const pid_t child =
      start_shell(wait_for_file(begun) + "sleep 1000 >/dev/null 2>&1 & echo $! >" + left + ".new");
  // The rank ends when the child has: the process it leaves is then a child of this one.
  std::thread renames([&] {
    await_end(child);
    rename((left + ".new").c_str(), left.c_str());
  });
  EXPECT_EQ(launch(shells(1, "touch " + begun + "; " + wait_for_file(left) + "exit 0")), kExitOk);
  renames.join();
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  const pid_t orphan = std::stoi(read_file(left));
  EXPECT_TRUE(is_child(orphan)) << "it became one, as the launcher asks for such processes";
  EXPECT_EQ(waitpid(orphan, nullptr, WNOHANG), 0) << "it still runs";
  kill(orphan, SIGKILL);
  EXPECT_EQ(waitpid(orphan, nullptr, 0), orphan);
}

TEST(LaunchCall, TakesOverLostProcessesOnlyWhileItRuns) {
  ASSERT_EQ(is_subreaper(), 0);
  EXPECT_EQ(launch(shells(1, "exit 0")), kExitOk);
  EXPECT_EQ(is_subreaper(), 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  EXPECT_EQ(launch(shells(1, "exit 0")), kExitOk);
  EXPECT_EQ(is_subreaper(), 1) << "as its caller had chosen";
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(LaunchCall, LeavesNothingOfAProgramThatCannotBeStarted) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/no-program";
  std::ofstream(file) << "no interpreter, no machine code\n";
  ASSERT_EQ(chmod(file.c_str(), 0700), 0);
  const pid_t living = start([] {
    for (;;) {
      pause();
    }
  });
  LaunchOptions options = shells(3, "");
  options.command = {file};
  EXPECT_NE(message_of<ConfigError>([&] { launch(options); }).find("could not be started"),
            std::string::npos);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), 0) << "one child, which runs";
  kill(living, SIGKILL);
  EXPECT_EQ(waitpid(living, nullptr, 0), living);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(LaunchCall, NamesARankThatHasDiedWhileOthersAreStillBusy) {
  const TemporaryFolder folder;
  const std::string errors = folder.path() + "/errors";
  const std::string seen = folder.path() + "/seen";
  const pid_t job = start([&] {
    EXPECT_NE(freopen(errors.c_str(), "w", stderr), nullptr);
    // Rank 0 does not notice, for as long as nobody has been told.
    LaunchOptions options =
        shells(2,
               "if [ $TRIREME_RANK = 1 ]; then kill -9 $$; fi; trap '' TERM; for i in "
               "$(seq 200); do grep -q 'rank 1 of 2' " +
                   errors + " && echo told > " + seen + " && exit 1; sleep 0.1; done");
    options.end_seconds = 30;
    _exit(launch(options));
  });
  int status = 0;
  ASSERT_EQ(waitpid(job, &status, 0), job);
  EXPECT_EQ(WEXITSTATUS(status), kExitRankFailed);
  EXPECT_EQ(read_file(seen), "told\n") << read_file(errors);
  EXPECT_NE(read_file(errors).find("waiting up to 30 s"), std::string::npos) << read_file(errors);
}

TEST(LaunchCall, NamesASpokesmanThatWasKilledWhateverItSaidBefore) {
  const TemporaryFolder folder;
  const std::string errors = folder.path() + "/errors";
  const pid_t job = start([&] {
    EXPECT_NE(freopen(errors.c_str(), "w", stderr), nullptr);
    LaunchOptions options = shells(1, "echo a warning of some library >&2; kill -9 $$");
    options.rank0_speaks = true;
    _exit(launch(options));
  });
  int status = 0;
  ASSERT_EQ(waitpid(job, &status, 0), job);
  EXPECT_EQ(WEXITSTATUS(status), kExitRankFailed);
  EXPECT_NE(read_file(errors).find("killed by signal 9"), std::string::npos) << read_file(errors);
}

// Whichever rank is the first to find the mistake, rank 0 speaks.
TEST(LaunchCall, TakesTheMistakeOfAnyRankForOne) {
  for (const auto& [first, code] : {std::pair(2, kExitUsage), std::pair(1, kExitRankFailed)}) {
    LaunchOptions options =
        shells(2,
               "if [ $TRIREME_RANK = 1 ]; then exit " + std::to_string(first) +
                   "; fi; sleep 0.2; echo rank 1 has found a mistake >&2; exit 1");
    options.rank0_speaks = true;
    EXPECT_EQ(launch(options), code);
  }
}

// Rank 0 has said it, and is asked to end before it has come to its end.
TEST(LaunchCall, TakesAMistakeForOneWhereRank0IsSlowToEnd) {
  for (const auto& [mistake, code] : {std::pair(2, kExitUsage), std::pair(1, kExitRankFailed)}) {
    const TemporaryFolder folder;
    const std::string errors = folder.path() + "/errors";
    const pid_t job = start([&, mistake = mistake] {
      EXPECT_NE(freopen(errors.c_str(), "w", stderr), nullptr);
      LaunchOptions options =
          shells(2,
                 "if [ $TRIREME_RANK = 1 ]; then exit " + std::to_string(mistake) +
                     "; fi; echo rank 1 has found a mistake >&2; exec sleep 100");
      options.rank0_speaks = true;
      options.end_seconds = 60;
      _exit(launch(options));
    });
    int status = 0;
    ASSERT_EQ(waitpid(job, &status, 0), job);
    EXPECT_EQ(WEXITSTATUS(status), code) << read_file(errors);
    EXPECT_EQ(read_file(errors).find("waiting up to") == std::string::npos, mistake == 2)
        << read_file(errors);
  }
}

TEST(LaunchCall, KeepsLogsWhereItIsTold) {
  const TemporaryFolder folder;
  LaunchOptions options = shells(1, "echo once");
  options.log_dir = folder.path();
  EXPECT_EQ(launch(options), kExitOk);
  EXPECT_EQ(launch(options), kExitOk);
  EXPECT_EQ(read_file(folder.path() + "/rank-0.log"), "once\n");
  options.append_logs = true;
  EXPECT_EQ(launch(options), kExitOk);
  EXPECT_EQ(read_file(folder.path() + "/rank-0.log"), "once\nonce\n");
}

TEST(LaunchCall, AsksWhetherThereIsRoom) {
  LaunchOptions options;
  options.command = {"/bin/true"};
  EXPECT_NO_THROW(check_launch(options));
  options.rank_bytes = std::uint64_t{1} << 50;
  EXPECT_THROW(check_launch(options), ConfigError);
  EXPECT_THROW(launch(options), ConfigError);
}

}  // namespace
}  // namespace trireme
