#include "comm/rendezvous/machine_meeting.h"

#include <cerrno>

#include <sys/syscall.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::detail {

FileDescriptor open_own_life() {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  TRIREME_CHECK(fd >= 0,
                "pidfd_open failed: ",
                errno_text(errno),
                "; Trireme needs Linux 5.3 or newer to notice a peer that dies");
  return FileDescriptor(fd);
}

MachineMeeting meet(const MachineMeetingOptions& options) {
  return options.identity.rank == 0 ? host_machine(options) : join_machine(options);
}

}  // namespace trireme::detail
