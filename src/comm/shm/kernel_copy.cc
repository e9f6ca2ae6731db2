#include "comm/shm/kernel_copy.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "comm/rendezvous/fixed_text.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

std::uint64_t random_word() {
  std::random_device source;
  return (std::uint64_t{source()} << 32) | source();
}

// Not the process number: those of two namespaces may be equal.
std::uint64_t number_of_this_process() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static std::uint64_t number = 0;
  const std::lock_guard lock(mutex);
  if (owner != getpid()) {  // the first time, or in a forked child
    owner = getpid();
    number = random_word();
  }
  return number;
}

std::uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// The setting of the Yama security module; -1 where the kernel has none.
int ptrace_scope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = -1;
  file >> scope;
  return file ? scope : -1;
}

// With ptrace_scope 1 a process is read only by its ancestors and by whom it names, with all that
// descends from it: the launcher's other children are its peers. One name per process is all that
// there is; a debugger that was named before has to be named again.
void let_siblings_read() {
  const pid_t parent = getppid();
  if (ptrace_scope() == 1 && parent > 0) {
    prctl(PR_SET_PTRACER, parent, 0, 0, 0);
  }
}

// 0, or an errno value.
int read_process(std::int32_t pid, std::uint64_t address, std::byte* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    // The kernel stops at what it cannot read, and after 2 GiB: the next call says which it was.
    const iovec local{to + done, bytes - done};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
    const iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return EFAULT;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

std::string remedy_for(int error, bool same_namespace) {
  if (!same_namespace) {
    return "start the ranks of a machine in the same process namespace (docker --pid)";
  }
  const int scope = ptrace_scope();
  if (error == EPERM && scope == 1) {
    return "start the ranks of a machine by one launcher, or set ptrace_scope to 0 (sysctl "
           "kernel.yama.ptrace_scope=0)";
  }
  if (error == EPERM && scope > 1) {
    return concat("set ptrace_scope to 1 or 0 (sysctl kernel.yama.ptrace_scope=1), found ",
                  scope,
                  scope == 2 ? ", or give the ranks CAP_SYS_PTRACE" : "; it needs a restart");
  }
  if (error == EPERM || error == ENOSYS) {
    return "in a container: docker --cap-add SYS_PTRACE, or a seccomp profile that allows "
           "process_vm_readv; else start all ranks as one user, from a program that may be read "
           "(PR_SET_DUMPABLE)";
  }
  return "run trireme doctor again; if it persists, please report it";
}

}  // namespace

MemoryOffer::MemoryOffer(bool wanted) : word_(std::make_unique<std::uint64_t>(random_word())) {
  if (wanted) {
    let_siblings_read();
  }
  probe_.process = number_of_this_process();
  probe_.pid_namespace = pid_namespace();
  probe_.address = reinterpret_cast<std::uintptr_t>(word_.get());
  probe_.word = *word_;
  probe_.pid = getpid();
  probe_.wanted = wanted ? 1 : 0;
}

KernelCopyReport try_kernel_copy(const std::vector<MemoryProbe>& probes,
                                 int rank,
                                 const std::vector<int>& world_ranks) {
  KernelCopyReport report{};
  for (std::size_t peer = 0; peer < probes.size(); ++peer) {
    if (probes[peer].wanted == 0) {
      copy_text(report.why_not, concat("switched off on rank ", world_ranks[peer]));
      copy_text(report.remedy,
                concat("unset ", kEnvKernelCopy, ", or set it to auto (InitOptions::kernel_copy)"));
      return report;
    }
  }
  const MemoryProbe& mine = probes[index(rank)];
  for (std::size_t peer = 0; peer < probes.size(); ++peer) {
    const MemoryProbe& theirs = probes[peer];
    if (theirs.process == mine.process) {
      continue;
    }
    std::uint64_t word = ~theirs.word;
    const int error =
        read_process(theirs.pid, theirs.address, reinterpret_cast<std::byte*>(&word), sizeof(word));
    if (error == 0 && word == theirs.word) {
      continue;
    }
    const bool same_namespace = theirs.pid_namespace == mine.pid_namespace;
    copy_text(report.why_not,
              concat("rank {} cannot read the memory of rank {} (process_vm_readv, pid {}): {}{}",
                     {world_ranks[index(rank)],
                      world_ranks[peer],
                      theirs.pid,
                      error != 0 ? errno_text(error) : "that pid is another process here",
                      same_namespace ? "" : "; they are in different process namespaces"}));
    copy_text(report.remedy, remedy_for(error, same_namespace));
    return report;
  }
  return report;
}

KernelCopy::KernelCopy(const std::vector<MemoryProbe>& probes,
                       int rank,
                       const KernelCopyReport& agreed)
    : usable_(agreed.why_not[0] == '\0'),
      why_not_(text_of(agreed.why_not)),
      remedy_(text_of(agreed.remedy)) {
  for (const MemoryProbe& probe : probes) {
    peers_.push_back({probe.pid, probe.process == probes[index(rank)].process});
  }
}

int KernelCopy::read(int peer, std::uint64_t address, std::byte* to, std::size_t bytes) const {
  const Peer& from = peers_[index(peer)];
  if (from.is_this_process) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it was a pointer of this process
    std::memcpy(to, reinterpret_cast<const std::byte*>(address), bytes);
    return 0;
  }
  return read_process(from.pid, address, to, bytes);
}

}  // namespace trireme::detail
