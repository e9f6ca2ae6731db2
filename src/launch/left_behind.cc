#include "launch/left_behind.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>
#include <sstream>
#include <thread>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// The children that one thread of this process has; a thread that ends hands them to another.
std::vector<pid_t> children_of_thread(const std::string& thread) {
  std::ifstream file(concat("/proc/self/task/", thread, "/children"));
  file.imbue(std::locale::classic());
  std::vector<pid_t> children;
  for (pid_t pid = 0; file >> pid;) {
    children.push_back(pid);
  }
  return children;
}

pid_t wait_for(pid_t pid, int options) {
  pid_t ended = -1;
  do {
    ended = waitpid(pid, nullptr, options);
  } while (ended < 0 && errno == EINTR);
  return ended;
}

// Whether a process, or one above it, was started as a rank of this job.
bool is_of_job(pid_t pid, const std::string& job) {
  const std::string entry = concat(kEnvJob, "=", job);
  // While a process begins another program, it seems to have no environment.
  constexpr int kMostLooks = 50;
  for (int look = 0; look < kMostLooks; ++look) {
    std::ifstream file(concat("/proc/", pid, "/environ"), std::ios::binary);
    bool any = false;
    for (std::string text; std::getline(file, text, '\0'); any = true) {
      if (text == entry) {
        return true;
      }
    }
    if (any) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace

LeftBehind::LeftBehind() {
  std::error_code ignored;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    for (const pid_t pid : children_of_thread(thread.path().filename().string())) {
      before_.insert(process(pid));
    }
  }
  int was = 0;
  was_subreaper_ = prctl(PR_GET_CHILD_SUBREAPER, &was) == 0 && was != 0;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

LeftBehind::~LeftBehind() {
  prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_ ? 1 : 0);
}

LeftBehind::Process LeftBehind::process(pid_t pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  // The name, in parentheses, may hold anything; the fields after it are words, of which the 20th
  // is the time of the start.
  constexpr int kStart = 20;
  std::istringstream words(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string word;
  for (int i = 0; i < kStart; ++i) {
    words >> word;
  }
  return {pid, std::strtoull(word.c_str(), nullptr, 10)};
}

// The kernel hands processes that have lost their parent to the first thread: what other threads of
// the caller start while ranks run is not among them.
std::vector<pid_t> LeftBehind::taken_over() const {
  std::vector<pid_t> children = children_of_thread(concat(getpid()));
  std::erase_if(children, [&](pid_t pid) { return before_.contains(process(pid)); });
  return children;
}

void LeftBehind::reap(const std::vector<pid_t>& ranks) const {
  for (const pid_t pid : taken_over()) {
    if (std::find(ranks.begin(), ranks.end(), pid) == ranks.end()) {
      wait_for(pid, WNOHANG);
    }
  }
}

void LeftBehind::end(const std::string& job) const {
  for (bool any = true; any;) {  // what one of them leaves turns up when it has ended
    any = false;
    for (const pid_t pid : taken_over()) {
      if (wait_for(pid, WNOHANG) == pid) {
        any = true;
        continue;
      }
      // A child that was there before may leave processes, too; those do not know the job's name.
      const bool is_ours = before_.empty() || is_of_job(pid, job);
      if (is_ours && kill(pid, SIGKILL) == 0) {  // a program of another user's cannot be ended
        wait_for(pid, 0);
        any = true;
      }
    }
  }
}

}  // namespace trireme::detail
