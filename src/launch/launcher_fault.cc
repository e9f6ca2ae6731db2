#include "launch/launcher_fault.h"

#include <csignal>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace trireme::detail {
namespace {

// Again and again, should the first one come before the process has stopped.
constexpr long kWakeAgainNanoseconds = 100'000'000;

// Of a fork: nothing but system calls.
[[noreturn]] void wake_after(double seconds, pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto whole = static_cast<time_t>(seconds);
  timespec pause{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
  while (getppid() == launcher) {
    nanosleep(&pause, nullptr);
    if (getppid() == launcher) {
      kill(launcher, SIGCONT);
    }
    pause = {0, kWakeAgainNanoseconds};
  }
  _exit(0);
}

}  // namespace

// A process that is stopped cannot have itself go on: a child does that, which dies with it.
void inflict_on_launcher(const DrillFault& fault) {
  const pid_t launcher = getpid();
  if (fault.kind == DrillKind::kKillLauncher) {
    kill(launcher, SIGKILL);
  }
  const pid_t waker = fork();
  if (waker == 0) {
    wake_after(fault.seconds, launcher);
  }
  if (waker < 0) {
    return;  // it would be stopped for good
  }
  raise(SIGSTOP);
  kill(waker, SIGKILL);
  waitpid(waker, nullptr, 0);
}

}  // namespace trireme::detail
