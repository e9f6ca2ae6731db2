#include "supervise.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <set>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command_words.h"
#include "number_options.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::tools {
namespace {

using SuperviseClock = std::chrono::steady_clock;
using detail::concat;

// Restarts are counted within the last hour. The pause before one doubles from the first to the
// longest, and begins anew after an attempt that lasted.
constexpr std::chrono::hours kCounted{1};
constexpr std::chrono::seconds kFirstPause{1};
constexpr std::chrono::seconds kLongestPause{60};
constexpr std::chrono::minutes kLasted{10};
constexpr std::chrono::seconds kTimeToSweep{10};
constexpr int kAsking[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

volatile sig_atomic_t job_pid = 0;   // the launcher; 0: none runs
volatile sig_atomic_t asked_by = 0;  // the signal that asked to end

// A terminal sends Ctrl-C to the launcher as well: it takes two that come together for one.
void pass_on(int number) {
  if (std::find(std::begin(kAsking), std::end(kAsking), number) != std::end(kAsking)) {
    asked_by = number;
  }
  if (job_pid > 0) {
    kill(static_cast<pid_t>(job_pid), number);
  }
}

void take_signals() {
  struct sigaction action {};
  action.sa_handler = pass_on;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction before {};
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) {
      sigaction(number, &action, nullptr);
    }
  }
}

// The words of this process, less the flag; the last ones are a program's, `others`, which may have
// such a flag of its own.
std::vector<std::string> supervised_words(std::size_t others) {
  const std::vector<std::string> all = command_words();
  std::vector<std::string> words;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_ours = i + others < all.size();
    if (is_ours && all[i] == "--supervise") {
      ++i;  // and its value
    } else if (!is_ours || !all[i].starts_with("--supervise=")) {
      words.push_back(all[i]);
    }
  }
  return words;
}

std::set<pid_t> children() {
  std::set<pid_t> found;
  std::ifstream file(concat("/proc/self/task/", getpid(), "/children"));
  for (pid_t pid = 0; file >> pid;) {
    found.insert(pid);
  }
  return found;
}

pid_t start(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // nobody looks after it any more: it ends in good order
    if (getppid() == supervisor) {
      execv("/proc/self/exe", arguments.data());
    }
    _exit(127);
  }
  TRIREME_CHECK(
      pid > 0, "--supervise: a process could not be started: ", detail::errno_text(errno));
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// The ranks of a launcher that was killed die with it; what these had started turns up here.
void sweep(const std::set<pid_t>& not_ours) {
  const auto end = SuperviseClock::now() + kTimeToSweep;
  for (;;) {
    std::set<pid_t> left = children();
    std::erase_if(left, [&](pid_t pid) { return not_ours.contains(pid); });
    if (left.empty() || SuperviseClock::now() > end) {
      return;
    }
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    usleep(10'000);
  }
}

// Sleeps until then, or until a signal asks to end.
void pause_until(SuperviseClock::time_point end) {
  while (asked_by == 0 && SuperviseClock::now() < end) {
    usleep(20'000);
  }
}

int code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// It has come to its end, was refused, or was asked to end.
bool is_the_end(int status) {
  const int code = code_of(status);
  return WIFEXITED(status) && (code == kExitOk || code == kExitUsage ||
                               std::any_of(std::begin(kAsking), std::end(kAsking), [&](int number) {
                                 return code == 128 + number;
                               }));
}

std::string what_became_of(int status) {
  return WIFEXITED(status) ? concat("has ended with exit code ", WEXITSTATUS(status))
                           : concat("is gone: its launcher was killed by signal ",
                                    WTERMSIG(status),
                                    " (",
                                    strsignal(WTERMSIG(status)),
                                    ")");
}

}  // namespace

void add_supervise_option(CLI::App& app, SuperviseFlag& flag) {
  add_count(app,
            "--supervise",
            flag.restarts,
            "Start the job again when its launcher dies or it ends by a fault, at most so many "
            "times within an hour");
}

int supervise(const SuperviseFlag& flag, const LaunchOptions& launch) {
  TRIREME_CHECK(launch.nodes == 1,
                "--supervise: expected a job on one machine, found --nnodes {}: leave it to what "
                "looks after the machines (docs/operations.md)",
                {launch.nodes});
  const std::vector<std::string> words = supervised_words(launch.command.size());
  const std::set<pid_t> before = children();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  take_signals();
  std::deque<SuperviseClock::time_point> restarts;
  std::chrono::seconds pause = kFirstPause;
  for (;;) {
    const auto began = SuperviseClock::now();
    const pid_t pid = start(words);
    job_pid = pid;
    if (asked_by != 0) {
      kill(pid, asked_by);  // that came just before
    }
    const int status = wait_for(pid);
    job_pid = 0;
    sweep(before);
    if (is_the_end(status) || asked_by != 0) {
      return code_of(status);
    }
    const auto now = SuperviseClock::now();
    pause = now - began > kLasted ? kFirstPause : pause;
    while (!restarts.empty() && now - restarts.front() > kCounted) {
      restarts.pop_front();
    }
    if (restarts.size() >= static_cast<std::size_t>(flag.restarts)) {
      std::fprintf(stderr,
                   "trireme: the job %s, and was started again %s within an hour: giving up\n",
                   what_became_of(status).c_str(),
                   detail::counted(restarts.size(), "time").c_str());
      return code_of(status);
    }
    restarts.push_back(now);
    std::fprintf(stderr,
                 "trireme: the job %s: starting it again in %lld s (%zu of %d)\n",
                 what_became_of(status).c_str(),
                 static_cast<long long>(pause.count()),
                 restarts.size(),
                 flag.restarts);
    pause_until(now + pause);
    if (asked_by != 0) {
      return 128 + asked_by;
    }
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace trireme::tools
