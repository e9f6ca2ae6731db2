#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/order/operation.h"

// The layout of the memory that the ranks of one machine share to coordinate: one block per rank,
// slots for operations, mailboxes for messages, staging areas. Everything here is a shared-memory
// format: fixed-width fields, cache-line aligned, no pointers.

namespace trireme::detail {

constexpr std::size_t kLineBytes = 64;
constexpr std::uint32_t kSlots = 32;  // collectives in flight per rank
constexpr std::uint32_t kMailboxEntries = 16;
// Slots of an outbox that messages to any rank share. There is one more for each rank, so that
// messages to a rank that does not receive yet cannot hold up those to others. Those are small:
// they are there for every pair of ranks, and only keep things moving when the others are taken.
constexpr std::uint32_t kOutboxSlots = 16;
constexpr std::size_t kOutboxSlotBytes = 64 << 10;
constexpr std::size_t kSpareSlotBytes = 1 << 10;
// Inputs up to this size travel in their slot, which saves a synchronisation; what lies in a
// SharedBuffer is worth a copy only up to a smaller one.
constexpr std::size_t kEagerBytes = 16 << 10;
constexpr std::size_t kEagerSharedBytes = 4 << 10;

// Where peers find the bytes a rank contributes.
enum class Source : std::uint8_t {
  kNone = 0,    // it contributes nothing
  kSlot = 1,    // small: copied into the slot behind the descriptor
  kShared = 2,  // in a SharedBuffer: read in place
  kStaged = 3,  // in private memory: passes through the staging area in windows
  kKernel = 4,  // in private memory: peers read it through the kernel
};

// Where all counters in the control memory begin; 0 where it is not set. For tests only: they begin
// close to 2^32, so that the counters wrap around while somebody looks. Rank 0's counts.
inline constexpr char kEnvFirstCount[] = "TRIREME_TEST_FIRST_COUNT";

// What a rank says about one operation. `sequence` is written last: a peer that sees it sees the
// rest. A slot is reused after kSlots operations, when every peer has completed the old one.
struct alignas(kLineBytes) Slot {
  std::atomic<std::uint32_t> sequence;
  OpKind kind;
  ReduceOp reduce;
  Dtype dtype;
  Source source;
  std::int32_t root;
  std::uint32_t segment;  // of a kShared source: which SharedBuffer,
  std::uint64_t offset;   // and where in this rank's part of it, in bytes; of kKernel: the address
  std::int64_t total;     // Operation::total
  std::int64_t input_numel;
  std::int64_t output_numel;
  std::uint32_t has_counts;  // Operation::counts follows the slot
  // Ranges of SumTerms::absent, where the eager input would be: such an input is never kSlot.
  std::uint32_t absent_count;
  DeviceType device;  // where the data is
};
static_assert(sizeof(Slot) == kLineBytes);

struct RankBlock {
  // Progress of this rank, each on a line of its own because peers poll them.
  // phase counts the synchronisation points this rank has passed inside operations; every rank
  // passes the same ones in the same order.
  alignas(kLineBytes) std::atomic<std::uint32_t> phase;
  // Operations completed: their slots may be reused.
  alignas(kLineBytes) std::atomic<std::uint32_t> completed;
  // How many it has issued; for messages.
  std::atomic<std::uint64_t> issued;
  // Threads of this rank asleep on `bell`; whoever publishes what they wait for rings it.
  alignas(kLineBytes) std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> bell;  // a futex
  // Set when this rank has left in good order: its end is then no failure.
  std::atomic<std::uint32_t> left;
  // The rank that this one waits for, + 1; 0: for nobody, or not for long. The upper half counts
  // how often it has said so: that of a rank which is stopped stands still.
  std::atomic<std::uint64_t> waits_for;
};

// The reason that ended the communicator, written once by the rank that found it.
struct AbortRecord {
  alignas(kLineBytes) std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 set
  std::int32_t reporter;
  std::int32_t blamed;
  std::int32_t reason;
  char message[8192];  // the reason comes first; what does not fit is marked as cut
};

struct ControlHeader {
  std::uint32_t first_count;  // kEnvFirstCount
  AbortRecord abort;
};

// One message, or one piece of it, from one rank to another.
struct alignas(kLineBytes) Fragment {
  Source source;  // kShared or kStaged (then `outbox_slot` holds `bytes` of it)
  Dtype dtype;
  std::int32_t tag;
  std::uint32_t segment;
  std::uint32_t outbox_slot;
  std::uint64_t offset;  // of a shared source
  std::int64_t numel;    // of the whole message
  std::uint64_t bytes;   // of this piece
};

// A ring of fragments from one rank to another.
struct Mailbox {
  alignas(kLineBytes) std::atomic<std::uint32_t> pushed;  // written by the sender
  alignas(kLineBytes) std::atomic<std::uint32_t> taken;   // written by the receiver
  Fragment fragments[kMailboxEntries];
};

struct OutboxFlag {
  alignas(
      kLineBytes) std::atomic<std::uint32_t> used;  // set by the sender, cleared by the receiver
};

// Bytes from one rank to another, about one thing, in order: a ring that follows these counters of
// all bytes that ever went in and came out. Only where the world's algorithm has a name
// (lane_transport.h).
struct Lane {
  alignas(kLineBytes) std::atomic<std::uint64_t> pushed;  // written by the sender
  alignas(kLineBytes) std::atomic<std::uint64_t> taken;   // written by the receiver
};
constexpr std::uint32_t kLanes = 3;  // from a rank to another

// Of each lane in a world of so many ranks: long enough for both ends to work at the same time, and
// at most 6 MiB per rank, of up to 256 ranks.
std::size_t lane_bytes_for(int size);

// Finds things in the control memory.
class Control {
 public:
  Control() = default;
  // `lane_bytes`: of each lane, a power of two; 0: there are none.
  Control(std::byte* base, int size, std::size_t stage_bytes, std::size_t lane_bytes = 0);

  static std::size_t bytes(int size, std::size_t stage_bytes, std::size_t lane_bytes = 0);

  // Of memory that is all zero, before anyone else sees it.
  void begin_counting(std::uint32_t first_count) const;

  ControlHeader& header() const { return *reinterpret_cast<ControlHeader*>(base_); }
  RankBlock& rank(int rank) const;
  Slot& slot(int rank, std::uint32_t sequence) const;
  std::int64_t* counts(Slot& slot) const;
  std::byte* eager(Slot& slot) const;
  // Half 0 or 1 of a rank's staging area.
  std::byte* stage(int rank, std::uint32_t half) const;
  std::size_t stage_bytes() const { return stage_bytes_; }
  Mailbox& mailbox(int from, int to) const;
  // Slots kOutboxSlots + r are for rank r alone.
  OutboxFlag& outbox_flag(int rank, std::uint32_t slot) const;
  std::byte* outbox(int rank, std::uint32_t slot) const;
  static std::size_t outbox_bytes(std::uint32_t slot) {
    return slot < kOutboxSlots ? kOutboxSlotBytes : kSpareSlotBytes;
  }
  Lane& lane(int from, int to, std::uint32_t number) const;
  std::byte* ring(Lane& lane) const { return reinterpret_cast<std::byte*>(&lane + 1); }
  std::size_t lane_bytes() const { return lane_bytes_; }

 private:
  // A rank's area: block | slots | mailboxes to every rank | outbox flags | spare slots | outbox |
  // stage halves | lanes to every rank. What is always there for every pair of ranks (kSlots
  // counts, a mailbox, a flag and a spare slot) makes the whole grow with the square of their
  // number, and is kept to 2.5 KiB.
  struct Offsets {
    Offsets() = default;
    Offsets(int size, std::size_t stage_bytes, std::size_t lane_bytes);
    std::size_t counts_bytes = 0, slot_bytes = 0;
    std::size_t slots = 0, mailboxes = 0, outbox_flags = 0, spare_slots = 0, outbox = 0, stage = 0;
    std::size_t lanes = 0;
    std::size_t end = 0;
  };

  std::byte* rank_base(int rank) const;

  std::byte* base_ = nullptr;
  std::byte* ranks_ = nullptr;
  int size_ = 0;
  std::size_t stage_bytes_ = 0;
  std::size_t lane_bytes_ = 0;
  Offsets offsets_;
};

}  // namespace trireme::detail
