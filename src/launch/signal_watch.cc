#include "launch/signal_watch.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <sys/signalfd.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kPassedSignals = {SIGUSR1, SIGUSR2, SIGCONT};

}  // namespace

SignalWatch::SignalWatch() {
  sigset_t set;
  sigemptyset(&set);
  // What whoever started the launcher had it ignore (nohup, a job in the background of a script)
  // stays ignored, for the ranks too.
  const auto add_unless_ignored = [&](int number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
      sigaddset(&set, number);
    }
  };
  std::for_each(kEndingSignals.begin(), kEndingSignals.end(), add_unless_ignored);
  std::for_each(kPassedSignals.begin(), kPassedSignals.end(), add_unless_ignored);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTSTP);
  sigaddset(&set, SIGPIPE);
  sigaddset(&set, SIGXFSZ);  // a log file at its limit is an error of write()
  sigprocmask(SIG_BLOCK, &set, &before_);
  fd_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  TRIREME_CHECK(fd_.valid(), "signalfd failed: ", errno_text(errno));
}

SignalWatch::~SignalWatch() {
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWatch::next() const {
  signalfd_siginfo info{};
  return read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                              : 0;
}

bool SignalWatch::asks_to_end(int number) {
  return std::find(kEndingSignals.begin(), kEndingSignals.end(), number) != kEndingSignals.end();
}

bool SignalWatch::is_passed_on(int number) {
  return std::find(kPassedSignals.begin(), kPassedSignals.end(), number) != kPassedSignals.end();
}

}  // namespace trireme::detail
