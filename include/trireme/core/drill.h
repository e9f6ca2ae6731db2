#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/file_descriptor.h"
#include "trireme/core/pulse.h"

// Drills: faults that are injected into a job to see that it outlives them. What happens, where and
// when, follows from a seed and the number of a step, not from the clock. The launcher makes the
// memory that holds the plan, hands it to its ranks, and reads there what they have suffered.

namespace trireme {

enum class DrillKind : std::uint32_t {
  kKill,          // a rank gets SIGKILL, in a step or at a DrillPoint
  kStop,          // a rank gets SIGSTOP, and goes on after some seconds
  kDiskFull,      // a rank finds no room when it writes its part of a checkpoint
  kLeave,         // the job is to have one rank less
  kJoin,          // or one more
  kDelay,         // a message to another machine is held back, and those after it on its way
  kDrop,          // the connection of two ranks on different machines is broken off
  kCorrupt,       // one bit of a message to another machine is flipped
  kKillLauncher,  // the launcher of a machine gets SIGKILL, and its ranks die with it
  kStopLauncher,  // it gets SIGSTOP, and goes on after some seconds
};
inline constexpr DrillKind kLastDrillKind = DrillKind::kStopLauncher;
std::string drill_name(DrillKind kind);
// Of what ranks on different machines send each other.
bool is_of_links(DrillKind kind);
bool is_of_launchers(DrillKind kind);
std::optional<DrillKind> drill_kind(const std::string& name);

// Where a rank may be killed besides the parts of a step.
enum class DrillPoint : std::uint32_t {
  kSaveBegins,     // nothing of its part of a checkpoint is written
  kSaveWritten,    // all of it is, and nobody knows
  kSaveDelivered,  // its part is there, the checkpoint is not
  kTakeOver,       // its world has met, it has nothing of the state
  kTakenOver,      // it has its part of the state, the others perhaps not
  kCount,
};

struct DrillFault {
  DrillKind kind = DrillKind::kKill;
  // In each step, of kKill also at each DrillPoint; of kDiskFull, in each save; of kCorrupt, for
  // each message.
  double probability = 0.01;
  double seconds = 0;  // of kStop, kDelay and kStopLauncher
};

// What --drill says: "kill:p=0.02;stop:2s;leave".
struct DrillPlan {
  std::vector<DrillFault> faults;  // each kind once
  std::uint64_t seed = 1;
  // Whose launchers may be hit: those of the machines from this one on, of so many.
  int first_machine = 0;
  int machines = 1;

  // Throws ConfigError.
  static DrillPlan parse(const std::string& text, std::uint64_t seed);
  bool has(DrillKind kind) const;

  // A fault of a step, and the rank that it hits; at most one. Of a launcher, rank 0 is the one
  // that notes it.
  struct Hit {
    std::size_t fault = 0;  // in `faults`
    int rank = 0;
    PulsePhase phase = PulsePhase::kBackward;  // before which part of the step
    int machine = -1;                          // of a launcher: where it is
  };
  std::optional<Hit> in_step(std::int64_t step, int ranks) const;
  // The rank whose part of the checkpoint of this step cannot be written.
  std::optional<int> in_save(std::int64_t step, int ranks) const;
  // The rank that is killed there, with the state of this step at hand.
  std::optional<int> killed_at(DrillPoint point, std::int64_t step, int ranks) const;
  // A message between ranks: the how manieth that one sends the other with a tag, in a world, over
  // one of its transports.
  struct Sent {
    std::int64_t epoch = 0;
    int line = 0;
    int from = 0;
    int to = 0;
    std::uint32_t tag = 0;
    std::uint64_t number = 0;
  };
  // Which of its bits is flipped.
  std::optional<std::uint64_t> flips(const Sent& message, std::uint64_t bits) const;
};

namespace detail {

// Of a rank: the descriptor of the memory below.
inline constexpr char kEnvDrill[] = "TRIREME_DRILL";

struct DrillPage {
  static constexpr std::uint64_t kMagic = 0x6c6c'6972'6472'6972;
  static constexpr std::uint32_t kVersion = 4;
  static constexpr std::size_t kMostFaults = 10;
  static constexpr std::uint64_t kRecords = 256;
  static constexpr std::uint64_t kCommits = 4096;

  struct Record {
    DrillKind kind{};
    PulsePhase phase{};
    std::int64_t step = 0;  // from 0
    std::int64_t nanoseconds = 0;
    std::int64_t epoch = 0;  // of kCorrupt
    std::int32_t rank = 0;
    std::int32_t ranks = 0;
    std::int32_t pid = 0;
    std::int32_t peer = -1;                // of a link: the other end; -1: there is no link
    std::int32_t machine = -1;             // whose launcher it is for
    std::atomic<std::uint32_t> number{0};  // from 1; written last
  };
  struct Commit {
    std::int64_t steps = 0;  // that are kept
    std::int64_t epoch = 0;
    std::int64_t nanoseconds = 0;
  };

  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t count = 0;
  DrillFault faults[kMostFaults];
  std::uint64_t seed = 0;
  std::int32_t first_machine = 0;
  std::int32_t machines = 1;
  std::atomic<std::int64_t> begun{0};  // steps, by any rank of this machine
  // What has happened does not happen again when the step is computed again.
  std::atomic<std::int64_t> last_step{-1};
  std::atomic<std::int64_t> last_save{-1};
  std::atomic<std::int64_t> last_at[static_cast<std::size_t>(DrillPoint::kCount)] = {
      -1, -1, -1, -1, -1};                   // in which somebody was killed there
  std::atomic<std::int64_t> last_epoch{-1};  // in which a message was corrupted
  std::atomic<std::uint32_t> recorded{0};
  std::atomic<std::uint32_t> heard{0};  // by the launcher
  std::atomic<std::uint64_t> committed{0};
  Record records[kRecords];
  Commit commits[kCommits];
};

// True for the one who raises it.
bool raise_to(std::atomic<std::int64_t>& last, std::int64_t value);

// The memory as the launcher has it.
class DrillMemory {
 public:
  // Throws ConfigError where there is none.
  explicit DrillMemory(const DrillPlan& plan);
  DrillPage& page() const { return *page_; }
  int descriptor() const { return memory_.get(); }

 private:
  FileDescriptor memory_;
  std::shared_ptr<DrillPage> page_;
};

extern const bool kDrillIsOn;

void suffer(PulsePhase phase, std::int64_t step, int rank, int ranks);
void suffer_in_save(std::int64_t step, int rank, int ranks);
void suffer_at(DrillPoint point, std::int64_t step, int rank, int ranks);
void note_commit(std::int64_t epoch);
bool takes_disk_away();

// A fault of links, which is for the next message that this rank sends to another machine.
struct LinkFault {
  DrillKind kind{};
  double seconds = 0;
};
// A world begins that has links, or has none; what was meant for the last one is forgotten.
void begin_links(bool any);
// The fault that the message to `peer` at hand suffers, which is recorded.
std::optional<LinkFault> take_link_fault(int peer);
// Which bit of it is flipped, recorded; at most one message in a world.
std::optional<std::uint64_t> take_flip(const DrillPlan::Sent& message,
                                       std::uint64_t bits,
                                       int ranks);

// --- what ranks call; nothing happens where there is no drill

// Before this part of a step, which is counted from 0.
inline void drill_step(PulsePhase phase, std::int64_t step, int rank, int ranks) {
  if (kDrillIsOn) [[unlikely]] {
    suffer(phase, step, rank, ranks);
  }
}
// Before a part of a checkpoint is written.
inline void drill_save(std::int64_t step, int rank, int ranks) {
  if (kDrillIsOn) [[unlikely]] {
    suffer_in_save(step, rank, ranks);
  }
}
inline void drill_at(DrillPoint point, std::int64_t step, int rank, int ranks) {
  if (kDrillIsOn) [[unlikely]] {
    suffer_at(point, step, rank, ranks);
  }
}
// Whether the file system is to be full for the write at hand.
inline bool drill_disk_is_full() {
  return kDrillIsOn && takes_disk_away();
}
// The steps so far are kept; one rank says so.
inline void drill_commit(std::int64_t epoch) {
  if (kDrillIsOn) [[unlikely]] {
    note_commit(epoch);
  }
}

}  // namespace detail
}  // namespace trireme
