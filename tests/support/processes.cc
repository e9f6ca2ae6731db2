#include "support/processes.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

extern char** environ;  // NOLINT: POSIX gives the environment only by this name

namespace trireme::testing {
namespace {

std::string make_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "trireme-test-XXXXXX").string();
  TRIREME_CHECK(mkdtemp(pattern.data()) != nullptr, "no temporary folder: ", pattern);
  return pattern;
}

int open_for_writing(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

}  // namespace

Program::Program(std::vector<std::string> command, std::vector<std::string> environment)
    : folder_(make_folder()) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  const auto arguments = pointers(command);
  const auto variables = pointers(environment);
  const int out = open_for_writing(folder_ + "/out");
  const int err = open_for_writing(folder_ + "/err");
  pid_ = fork();
  if (pid_ == 0) {
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execvpe(arguments[0], arguments.data(), variables.data());
    _exit(127);
  }
  close(out);
  close(err);
}

Program::~Program() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::filesystem::remove_all(folder_);
}

std::vector<pid_t> Program::children() const {
  std::ifstream file(detail::concat("/proc/", pid_, "/task/", pid_, "/children"));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; file >> pid;) {
    pids.push_back(pid);
  }
  return pids;
}

bool Program::wait_for_children(const std::string& name, std::size_t count) const {
  return comes_true([&] {
    std::size_t found = 0;
    for (const pid_t pid : children()) {
      found += read_file(detail::concat("/proc/", pid, "/comm")) == name + "\n" ? 1 : 0;
    }
    return found == count;
  });
}

bool Program::wait_for_output(const std::string& text, int count) const {
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    const std::string all = read_file(folder_ + "/out");
    int found = 0;
    for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) {
      ++found;
    }
    if (found >= count) {
      return true;
    }
    if (std::chrono::steady_clock::now() >= late) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Finished Program::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_file(folder_ + "/out"),
          read_file(folder_ + "/err")};
}

std::string Program::output() const {
  return read_file(folder_ + "/out");
}

Finished Program::wait(std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  siginfo_t ended = {};
  // WNOWAIT leaves it to be reaped below.
  while (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0) {
    if (std::chrono::steady_clock::now() >= end) {
      kill(pid_, SIGKILL);
      Finished result = wait();
      result.err += detail::concat("\n(killed: still running after ", deadline.count(), " ms)\n");
      return result;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return wait();
}

Finished run_program(std::vector<std::string> command, std::vector<std::string> environment) {
  return Program(std::move(command), std::move(environment)).wait();
}

std::string trireme_binary() {
  return env_string("TRIREME_BIN").value();
}

std::string test_binary(const std::string& name) {
  return env_string("TRIREME_TEST_BIN").value() + "/" + name;
}

bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 3000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> pids;
  for (const auto& folder : std::filesystem::directory_iterator("/proc")) {
    const auto pid = parse_integer(folder.path().filename().string());
    if (!pid) {
      continue;
    }
    std::istringstream environment(read_file(folder.path().string() + "/environ"));
    for (std::string item; std::getline(environment, item, '\0');) {
      if (item == entry) {
        pids.push_back(static_cast<pid_t>(*pid));
      }
    }
  }
  return pids;
}

std::string unique_mark() {
  static std::atomic<int> count{0};
  return detail::concat("TRIREME_TEST_MARK=", getpid(), ".", count++);
}

TemporaryFolder::TemporaryFolder() : path_(make_folder()) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace trireme::testing
