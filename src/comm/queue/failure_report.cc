#include "comm/queue/failure_report.h"

#include <locale>
#include <sstream>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"

namespace trireme {

std::string FailureReport::to_line() const {
  return detail::concat(rank, " ", blamed, " ", rendezvous_timed_out ? 1 : 0, "\n");
}

bool FailureReport::parse(const std::string& line, FailureReport* report) {
  std::istringstream fields(line);
  fields.imbue(std::locale::classic());  // one that groups digits with spaces sees one number here
  int timed_out = 0;
  if (!(fields >> report->rank >> report->blamed >> timed_out)) {
    return false;
  }
  report->rendezvous_timed_out = timed_out != 0;
  return true;
}

namespace detail {
namespace {

// The launcher's pipe; -1 where there is none.
int report_pipe() {
  const auto place = env_string(kEnvReport);
  if (!place) {
    return -1;
  }
  int fd = -1;
  ino_t inode = 0;
  char colon = 0;
  std::istringstream fields(*place);
  fields.imbue(std::locale::classic());
  struct stat status {};
  // The program may have closed the descriptor and opened something else in its place: only the
  // very pipe of the launcher counts.
  if (!(fields >> fd >> colon >> inode) || fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode) ||
      status.st_ino != inode) {
    return -1;
  }
  return fd;
}

}  // namespace

void report_failure(int rank, const CommError& error) noexcept {
  try {
    const int fd = report_pipe();
    if (fd < 0 || launcher_has_ended()) {  // writing to nobody would raise SIGPIPE
      return;
    }
    const FailureReport report{
        rank, error.peer(), error.reason() == CommError::Reason::kRendezvousTimeout};
    const std::string line = report.to_line();
    [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
  } catch (...) {  // NOLINT(bugprone-empty-catch): the failure itself is on its way to the user
  }
}

bool launcher_has_ended() noexcept {
  try {
    // A pipe that nobody reads is in error.
    pollfd entry{report_pipe(), 0, 0};
    return entry.fd >= 0 && poll(&entry, 1, 0) > 0 && (entry.revents & POLLERR) != 0;
  } catch (...) {
    return false;
  }
}

}  // namespace detail
}  // namespace trireme
