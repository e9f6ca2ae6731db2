#include "comm/rendezvous/rendezvous.h"

#include <cerrno>

#include <sys/syscall.h>
#include <unistd.h>

#include "comm/rendezvous/welcome.h"
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

Membership meet(const RendezvousOptions& options) {
  return options.identity.rank == 0 ? host_world(options) : join_world(options);
}

}  // namespace trireme::detail
