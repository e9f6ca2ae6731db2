#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "trireme/core/file_descriptor.h"

// How a rank lets its launcher see that it gets on: one page of memory, which the launcher reads
// without asking, also when the rank is stopped, stuck or dead.

namespace trireme {

// Of a rank: the descriptor of its page.
inline constexpr char kEnvPulse[] = "TRIREME_PULSE";

// What a rank did when it made its last mark.
enum class PulsePhase : std::uint32_t {
  kNothing,
  kBatch,       // took a batch of data
  kOperator,    // ran an operator on parameters
  kBackward,    // computed a micro-batch
  kCollective,  // issued, looked for or completed a collective
  kUpdate,      // updated parameters
  kVault,       // kept its state
  kCheckpoint,  // read or wrote a piece of a checkpoint
  kEvaluation,  // evaluated a batch
  kByHand,      // EngineBase::alive()
  kKept,        // kept its state, and does not know of the others'
  kAgreed,      // knows that all ranks have kept theirs
  kTaken,       // took what the ranks of the last world had kept
};
const char* pulse_phase_text(PulsePhase phase);

// The page. Written by any thread of the rank, without locks; what is added later takes the place
// of `later` and makes the version another.
struct PulsePage {
  static constexpr std::uint64_t kMagic = 0x6573'6c75'7072'6972;  // of the first bytes
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kBytes = 4096;

  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t bytes = kBytes;
  std::atomic<std::uint64_t> marks{0};    // how many were made
  std::atomic<std::uint32_t> phase{0};    // PulsePhase of the last one
  std::atomic<std::uint32_t> waiting{0};  // threads that wait for other ranks
  std::atomic<std::uint32_t> engines{0};  // that train: without one, marks are not expected
  std::atomic<std::uint32_t> reserved{0};
  std::atomic<std::int64_t> step{0};  // steps that the newest engine has taken
  std::byte later[kBytes - 48];
};
static_assert(sizeof(PulsePage) == PulsePage::kBytes);

namespace detail {

// This process's page: the launcher's, or one that nobody sees.
PulsePage& pulse();

// A sign of progress, made where work is done: a thread that made them by itself would hide that
// the others are stuck.
inline void mark(PulsePhase phase) {
  PulsePage& page = pulse();
  page.phase.store(static_cast<std::uint32_t>(phase), std::memory_order_relaxed);
  page.marks.fetch_add(1, std::memory_order_relaxed);
}

// While it lives, this thread waits for other ranks: that it makes no marks is not its fault.
class PulseWait {
 public:
  PulseWait() { pulse().waiting.fetch_add(1, std::memory_order_relaxed); }
  PulseWait(const PulseWait&) = delete;
  PulseWait& operator=(const PulseWait&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): the page was found when this was made
  ~PulseWait() { pulse().waiting.fetch_sub(1, std::memory_order_relaxed); }
};

// While it lives, this process trains.
class PulseEngine {
 public:
  PulseEngine() { pulse().engines.fetch_add(1, std::memory_order_relaxed); }
  PulseEngine(const PulseEngine&) = delete;
  PulseEngine& operator=(const PulseEngine&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): the page was found when this was made
  ~PulseEngine() { pulse().engines.fetch_sub(1, std::memory_order_relaxed); }
};

// A page as the launcher has it.
class PulseMemory {
 public:
  // Throws ConfigError where there is no memory, or no descriptor, for it.
  PulseMemory();

  const PulsePage& page() const { return *page_; }
  // For the rank; gone after `close`, which leaves the page.
  int descriptor() const { return memory_.get(); }
  void close() { memory_.reset(); }

 private:
  FileDescriptor memory_;
  std::shared_ptr<PulsePage> page_;
};

}  // namespace detail
}  // namespace trireme
