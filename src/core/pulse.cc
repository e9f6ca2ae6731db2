#include "trireme/core/pulse.h"

#include <cerrno>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme {

const char* pulse_phase_text(PulsePhase phase) {
  switch (phase) {
    case PulsePhase::kNothing:
      return "nothing yet";
    case PulsePhase::kBatch:
      return "took a batch of data";
    case PulsePhase::kOperator:
      return "ran an operator on parameters";
    case PulsePhase::kBackward:
      return "computed a micro-batch";
    case PulsePhase::kCollective:
      return "took part in a collective";
    case PulsePhase::kUpdate:
      return "updated parameters";
    case PulsePhase::kVault:
      return "kept its state";
    case PulsePhase::kCheckpoint:
      return "read or wrote a piece of a checkpoint";
    case PulsePhase::kEvaluation:
      return "evaluated a batch";
    case PulsePhase::kByHand:
      return "called alive()";
    case PulsePhase::kKept:
      return "kept its state, the others perhaps not yet";
    case PulsePhase::kAgreed:
      return "knew that all had kept their state";
    case PulsePhase::kTaken:
      return "took over the state of the last world";
  }
  return "something that this version does not know";
}

namespace detail {
namespace {

void* map_pulse(int fd) {
  void* memory = mmap(nullptr, PulsePage::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// The launcher's page; null where there is none. The program may have closed the descriptor and
// opened something else in its place, and a program that this one starts is not the rank.
PulsePage* launchers_page() {
  const auto number = env_integer(kEnvPulse, 0, 1 << 20);
  const int fd = number ? static_cast<int>(*number) : -1;
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0 || status.st_size != PulsePage::kBytes) {
    return nullptr;
  }
  auto* page = static_cast<PulsePage*>(map_pulse(fd));
  if (page == nullptr) {
    return nullptr;
  }
  if (page->magic != PulsePage::kMagic || page->version != PulsePage::kVersion) {
    munmap(page, PulsePage::kBytes);
    return nullptr;
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return page;
}

PulsePage* find_page() {
  PulsePage* page = launchers_page();
  return page != nullptr ? page : new PulsePage();  // for as long as the process lives
}

}  // namespace

PulsePage& pulse() {
  static PulsePage* page = find_page();
  return *page;
}

PulseMemory::PulseMemory() : memory_(memfd_create("trireme-pulse", MFD_CLOEXEC)) {
  void* memory = memory_.valid() && ftruncate(memory_.get(), PulsePage::kBytes) == 0
                     ? map_pulse(memory_.get())
                     : nullptr;
  TRIREME_CHECK(memory != nullptr,
                "a page of memory for a rank could not be made: {}; raise the limit on open files "
                "(ulimit -n), or on the size of files (ulimit -f)",
                {errno_text(errno)});
  page_ = std::shared_ptr<PulsePage>(new (memory) PulsePage, [](PulsePage* page) {
    munmap(static_cast<void*>(page), PulsePage::kBytes);
  });
}

}  // namespace detail
}  // namespace trireme
