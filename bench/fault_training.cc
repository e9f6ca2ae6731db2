#include "fault_training.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/concat.h"

namespace trireme::bench {

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "trireme";
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

FaultTraining::FaultTraining(const std::vector<std::string>& words,
                             std::string run,
                             const std::string& mark,
                             int end)
    : run_(std::move(run)), output_(run_ + ".out") {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char> entry(mark.begin(), mark.end());
  entry.push_back('\0');
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);  // Ctrl-C ends it with this process
    prctl(PR_SET_PDEATHSIG, end);
    if (getppid() != parent) {
      _exit(127);
    }
    const int output = open(output_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (output < 0) {
      _exit(126);
    }
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    if (!mark.empty()) {
      putenv(entry.data());
    }
    execv(arguments[0], arguments.data());
    _exit(127);
  }
}

FaultTraining::~FaultTraining() {
  if (pid_ > 0 && !code_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

bool FaultTraining::runs() {
  int status = 0;
  if (!code_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return !code_;
}

int FaultTraining::wait() {
  while (runs()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return *code_;
}

void FaultTraining::stop() {
  if (runs()) {
    kill(pid_, SIGTERM);
    wait();
  }
}

std::vector<pid_t> FaultTraining::ranks() const {
  std::vector<pid_t> found;
  std::ifstream file(detail::concat("/proc/{}/task/{}/children", {pid_, pid_}));
  for (pid_t pid = 0; file >> pid;) {
    found.push_back(pid);
  }
  return found;
}

std::int64_t FaultTraining::step() const {
  std::ifstream file(run_ + "/metrics.jsonl", std::ios::binary | std::ios::ate);
  constexpr std::streamoff kTail = 2000;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t end = text.rfind('\n');
  const std::size_t begin = end == std::string::npos ? end : text.rfind("{\"step\":", end);
  return begin == std::string::npos ? 0 : std::strtoll(text.c_str() + begin + 8, nullptr, 10);
}

// Only what is new: it is asked a thousand times a second, and a log of a thousand faults is long.
std::pair<int, std::int64_t> FaultTraining::resumed() {
  const std::string words = "resuming after step ";
  std::ifstream file(run_ + "/train.log", std::ios::binary);
  file.seekg(log_read_);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    log_read_ += static_cast<std::streamoff>(line.size()) + 1;
    if (const std::size_t at = line.find(words); at != std::string::npos) {
      resumed_ = {resumed_.first + 1, std::strtoll(line.c_str() + at + words.size(), nullptr, 10)};
    }
  }
  return resumed_;
}

std::string FaultTraining::last_words() const {
  constexpr int kLines = 12;
  std::string text = file_text(output_);
  std::size_t begin = text.size();
  for (int line = 0; line <= kLines && begin != 0; ++line) {
    begin = text.rfind('\n', begin - 1);
    if (begin == std::string::npos) {
      return text;
    }
  }
  return text.substr(begin == 0 ? 0 : begin + 1);
}

}  // namespace trireme::bench
