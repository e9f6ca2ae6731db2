#include "trireme/core/drill.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// For the launcher to take note of what it has to do itself.
constexpr std::chrono::seconds kPatienceWithLauncher{10};

DrillPage* drill_page = nullptr;

DrillPlan& drill_plan() {
  static DrillPlan plan;
  return plan;
}

void* map_drill(int fd) {
  void* memory = mmap(nullptr, sizeof(DrillPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

bool open_drill() {
  const auto text = env_string(kEnvDrill);
  const auto number = text ? parse_integer(*text) : std::nullopt;
  struct stat status {};
  if (!number || *number < 0 || *number > 1 << 20 ||
      fstat(static_cast<int>(*number), &status) != 0 || status.st_size != sizeof(DrillPage)) {
    return false;
  }
  auto* page = static_cast<DrillPage*>(map_drill(static_cast<int>(*number)));
  if (page == nullptr || page->magic != DrillPage::kMagic || page->version != DrillPage::kVersion ||
      page->count > DrillPage::kMostFaults) {
    std::fputs(
        "trireme: warning: the launcher's drill is not one that this program's version of Trireme "
        "knows: nothing happens to this rank; build both with the same version\n",
        stderr);
    return false;
  }
  drill_page = page;
  drill_plan().faults.assign(page->faults, page->faults + page->count);
  drill_plan().seed = page->seed;
  drill_plan().first_machine = page->first_machine;
  drill_plan().machines = page->machines;
  fcntl(static_cast<int>(*number), F_SETFD, FD_CLOEXEC);
  return true;
}

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Suffered {
  DrillKind kind{};
  PulsePhase phase{};
  std::int64_t step = 0;
  int rank = 0;
  int ranks = 0;
  int peer = -1;
  std::int64_t epoch = 0;
  int machine = -1;
};

std::uint32_t record_fault(const Suffered& fault) {
  const std::uint32_t number = drill_page->recorded.fetch_add(1) + 1;
  DrillPage::Record& record = drill_page->records[number % DrillPage::kRecords];
  record.kind = fault.kind;
  record.phase = fault.phase;
  record.step = fault.step;
  record.rank = fault.rank;
  record.ranks = fault.ranks;
  record.pid = getpid();
  record.peer = fault.peer;
  record.machine = fault.machine;
  record.epoch = fault.epoch;
  record.nanoseconds = nanoseconds_now();
  record.number.store(number, std::memory_order_release);
  return number;
}

std::atomic<bool> disk_is_away{false};

// Meant for the next message to another machine: by the thread that trains, for the one that sends.
std::mutex link_mutex;
std::optional<Suffered> link_fault;  // guarded by link_mutex
bool has_links = false;              // guarded by link_mutex

}  // namespace

bool raise_to(std::atomic<std::int64_t>& last, std::int64_t value) {
  std::int64_t before = last.load();
  while (before < value) {
    if (last.compare_exchange_weak(before, value)) {
      return true;
    }
  }
  return false;
}

// NOLINTNEXTLINE(bugprone-throwing-static-initialization): its launcher has set it, or nobody has
const bool kDrillIsOn = open_drill();

DrillMemory::DrillMemory(const DrillPlan& plan)
    : memory_(memfd_create("trireme-drill", MFD_CLOEXEC)) {
  void* memory = memory_.valid() && ftruncate(memory_.get(), sizeof(DrillPage)) == 0
                     ? map_drill(memory_.get())
                     : nullptr;
  TRIREME_CHECK(memory != nullptr,
                "memory for the drill could not be made: {}; raise the limit on open files "
                "(ulimit -n), or on the size of files (ulimit -f)",
                {errno_text(errno)});
  TRIREME_ASSERT(plan.faults.size() <= DrillPage::kMostFaults, "a drill of too many kinds");
  page_ = std::shared_ptr<DrillPage>(new (memory) DrillPage, [](DrillPage* page) {
    munmap(static_cast<void*>(page), sizeof(DrillPage));
  });
  page_->count = static_cast<std::uint32_t>(plan.faults.size());
  std::copy(plan.faults.begin(), plan.faults.end(), page_->faults);
  page_->seed = plan.seed;
  page_->first_machine = plan.first_machine;
  page_->machines = plan.machines;
}

void suffer(PulsePhase phase, std::int64_t step, int rank, int ranks) {
  raise_to(drill_page->begun, step + 1);
  const auto hit = drill_plan().in_step(step, ranks);
  // A rank that has nothing to compute comes to a later part first.
  if (!hit || hit->rank != rank || phase < hit->phase || !raise_to(drill_page->last_step, step)) {
    return;
  }
  const DrillKind kind = drill_plan().faults[hit->fault].kind;
  const Suffered fault{kind, phase, step, rank, ranks, -1, 0, hit->machine};
  if (is_of_links(kind)) {
    const std::lock_guard lock(link_mutex);
    if (has_links) {
      link_fault = fault;
    } else {
      record_fault(fault);
    }
    return;
  }
  const std::uint32_t number = record_fault(fault);
  if (kind == DrillKind::kKill) {
    kill(getpid(), SIGKILL);
  } else if (kind == DrillKind::kStop) {
    raise(SIGSTOP);                     // the launcher has it go on
  } else if (!is_of_launchers(kind)) {  // of these, it is nobody's business here when that dies

    // What the launcher does is to follow on this step, not on one soon after.
    const auto end = std::chrono::steady_clock::now() + kPatienceWithLauncher;
    while (drill_page->heard.load() < number && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void suffer_in_save(std::int64_t step, int rank, int ranks) {
  if (drill_plan().in_save(step, ranks) == rank && raise_to(drill_page->last_save, step)) {
    record_fault({DrillKind::kDiskFull, PulsePhase::kCheckpoint, step, rank, ranks});
    disk_is_away = true;
  }
}

void suffer_at(DrillPoint point, std::int64_t step, int rank, int ranks) {
  if (drill_plan().killed_at(point, step, ranks) == rank &&
      raise_to(drill_page->last_at[static_cast<std::size_t>(point)], step)) {
    const bool joins = point == DrillPoint::kTakeOver || point == DrillPoint::kTakenOver;
    record_fault({DrillKind::kKill,
                  joins ? PulsePhase::kTaken : PulsePhase::kCheckpoint,
                  step,
                  rank,
                  ranks});
    kill(getpid(), SIGKILL);
  }
}

bool takes_disk_away() {
  return disk_is_away.exchange(false);
}

void begin_links(bool any) {
  const std::lock_guard lock(link_mutex);
  has_links = any;
  link_fault.reset();
}

std::optional<LinkFault> take_link_fault(int peer) {
  const std::lock_guard lock(link_mutex);
  if (!link_fault) {
    return std::nullopt;
  }
  Suffered fault = *std::exchange(link_fault, std::nullopt);
  fault.peer = peer;
  record_fault(fault);
  for (const DrillFault& planned : drill_plan().faults) {
    if (planned.kind == fault.kind) {
      return LinkFault{fault.kind, planned.seconds};
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> take_flip(const DrillPlan::Sent& message,
                                       std::uint64_t bits,
                                       int ranks) {
  const auto bit = drill_plan().flips(message, bits);
  // The first one ends the world.
  if (!bit || !raise_to(drill_page->last_epoch, message.epoch)) {
    return std::nullopt;
  }
  const std::int64_t step = pulse().step.load() - 1;  // at hand, or just kept
  record_fault({DrillKind::kCorrupt,
                PulsePhase::kCollective,
                step,
                message.from,
                ranks,
                message.to,
                message.epoch});
  return bit;
}

void note_commit(std::int64_t epoch) {
  const std::uint64_t number = drill_page->committed.load();
  drill_page->commits[number % DrillPage::kCommits] = {
      pulse().step.load(), epoch, nanoseconds_now()};
  drill_page->committed.store(number + 1, std::memory_order_release);
}

}  // namespace trireme::detail
