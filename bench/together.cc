#include "together.h"

#include <cerrno>
#include <ctime>
#include <optional>
#include <utility>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/deadline.h"
#include "trireme/core/error.h"

extern char** environ;  // NOLINT: POSIX gives the environment only by this name

namespace trireme::bench {
namespace {

constexpr std::chrono::seconds kAfterFailure{10};
constexpr int kNotFound = 127;

sigset_t held_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  return set;
}

// A child with the signals as they are by default: it must not hold what this process holds.
pid_t start(const std::vector<std::string>& command) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const std::string& word : command) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, words[0], nullptr, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  return error == 0 ? pid : -1;
}

class Children {
 public:
  explicit Children(const std::vector<std::vector<std::string>>& commands) {
    for (const auto& command : commands) {
      const pid_t pid = start(command);
      if (pid < 0) {
        note(kNotFound);
      } else {
        running_.push_back(pid);
      }
    }
  }

  int wait() {
    const sigset_t set = held_set();
    for (reap(); !running_.empty(); reap()) {
      timespec pause{1, 0};  // a moment, for the deadline below
      const int signal = sigtimedwait(&set, nullptr, &pause);
      if (signal > 0 && signal != SIGCHLD) {
        code_ = 128 + signal;
        failed_at_ = failed_at_.value_or(Clock::now());
        end(SIGTERM);
      } else if (failed_at_ && Clock::now() - *failed_at_ > kAfterFailure) {
        // They were told, or wait for one that is gone.
        end(told_ ? SIGKILL : SIGTERM);
        failed_at_ = Clock::now();
      }
    }
    return code_;
  }

 private:
  void note(int code) {
    if (code != 0 && code_ == 0) {
      code_ = code;
      failed_at_ = Clock::now();
    }
  }

  void end(int signal) {
    told_ = true;
    for (const pid_t pid : running_) {
      kill(pid, signal);
    }
  }

  void reap() {
    std::vector<pid_t> left;
    for (const pid_t pid : running_) {
      int status = 0;
      const pid_t ended = waitpid(pid, &status, WNOHANG);
      if (ended == 0 || (ended < 0 && errno == EINTR)) {
        left.push_back(pid);
      } else {
        note(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
      }
    }
    running_ = std::move(left);
  }

  std::vector<pid_t> running_;
  int code_ = 0;
  bool told_ = false;
  std::optional<Clock::time_point> failed_at_;
};

}  // namespace

HeldSignals::HeldSignals() {
  const sigset_t set = held_set();
  TRIREME_CHECK(sigprocmask(SIG_BLOCK, &set, &before_) == 0,
                "signals could not be held: ",
                detail::errno_text(errno));
}

HeldSignals::~HeldSignals() {
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int run_together(const std::vector<std::vector<std::string>>& commands) {
  const HeldSignals held;
  return Children(commands).wait();
}

}  // namespace trireme::bench
