// Files that are there whole or not at all, and what is left of those who write them.

#include "trireme/core/partial_file.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/processes.h"
#include "trireme/core/error.h"
#include "trireme/core/output_file.h"

namespace trireme::partial_file_test {
namespace {

namespace fs = std::filesystem;

std::size_t files_in(const std::string& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// How a process ends that writes this file, and then does something else.
int status_of_writer(const std::string& path, const std::function<void()>& then) {
  const pid_t pid = fork();
  if (pid == 0) {
    const PartialFile file(path);
    then();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(PartialFile, ASignalThatEndsTheProcessRemovesIt) {
  const testing::TemporaryFolder folder;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const int status = status_of_writer(folder.path() + "/weights", [&] {
      signal(number, SIG_DFL);  // whatever the one who runs the tests has ignored
      remove_partial_files_at_signals();
      raise(number);
    });
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), number);
    EXPECT_EQ(files_in(folder.path()), 0U);
  }
}

TEST(PartialFile, TheNextOneRemovesWhatAKilledProcessHasLeft) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/weights";
  status_of_writer(path, [] { raise(SIGKILL); });
  ASSERT_EQ(files_in(folder.path()), 1U) << "there is nothing to remove";
  const std::string others[] = {path + "2.partial-4194304", path + ".partial-of-mine"};
  for (const std::string& other : others) {
    std::ofstream(other) << "x";
  }
  // One that is being written stays.
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t alive = fork();
  if (alive == 0) {
    const PartialFile file(path);
    char byte = 1;
    _exit(write(go[1], &byte, 1) == 1 && pause() == 0 ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(go[0], &byte, 1), 1);
  {
    PartialFile file(path);
    file.check_created();
    file.finish();
  }
  EXPECT_EQ(files_in(folder.path()), 4U);
  EXPECT_TRUE(fs::exists(path + ".partial-" + std::to_string(alive)));
  EXPECT_TRUE(fs::exists(path));
  kill(alive, SIGKILL);
  waitpid(alive, nullptr, 0);
}

// As a user to whom nothing belongs; the tests often run as root, who may write anything.
TEST(OutputFile, LeavesWhatIsWriteProtected) {
  const testing::TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);  // everybody may make files here
  const std::string path = folder.path() + "/chart.svg";
  std::ofstream(path) << "mine";
  ASSERT_EQ(chmod(path.c_str(), 0444), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    constexpr uid_t kNobody = 65534;
    bool refused = false;
    if (getuid() != 0 || (setgid(kNobody) == 0 && setuid(kNobody) == 0)) {
      try {
        write_output(path, "theirs", "-o");
      } catch (const ConfigError& error) {
        refused = std::string(error.what()).find("Permission denied") != std::string::npos;
      }
    }
    _exit(refused ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(testing::read_file(path), "mine");
}

TEST(OutputFile, IsWholeOrAsItWas) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/out.json";
  write_output(path, "old", "--json");
  rlimit usual{};
  getrlimit(RLIMIT_FSIZE, &usual);
  const rlimit small{1000, usual.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  std::string reason;
  for (const std::string& at : {path, folder.path() + "/new.json"}) {
    try {
      write_output(at, std::string(5000, 'x'), "--json");
    } catch (const ConfigError&) {
      reason = "it can be opened";
    } catch (const Error& error) {
      reason = error.what();
    }
    EXPECT_NE(reason.find('"' + at + "\" could not be written: File too large"), std::string::npos)
        << reason;
  }
  setrlimit(RLIMIT_FSIZE, &usual);
  EXPECT_EQ(testing::read_file(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1U);
  EXPECT_THROW(write_output(folder.path() + "/no/such", "x", "--json"), ConfigError);
  EXPECT_THROW(write_output("/dev/full", "x", "--json"), Error);
}

}  // namespace
}  // namespace trireme::partial_file_test
