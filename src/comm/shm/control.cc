#include "comm/shm/control.h"

#include <algorithm>
#include <bit>

#include "device/host/segment.h"
#include "trireme/comm/shared_buffer.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

std::size_t header_bytes() {
  return device::round_up(sizeof(ControlHeader), SharedBuffer::page_bytes());
}

// All lanes from one rank to another.
std::size_t pair_bytes(std::size_t lane_bytes) {
  return lane_bytes == 0 ? 0 : kLanes * (sizeof(Lane) + lane_bytes);
}

}  // namespace

std::size_t lane_bytes_for(int size) {
  constexpr std::size_t kLeast = 8 << 10;
  constexpr std::size_t kMost = 128 << 10;
  constexpr std::size_t kMostOfARank = 2 << 20;  // one lane to everyone
  return std::clamp(std::bit_floor(kMostOfARank / index(size)), kLeast, kMost);
}

Control::Offsets::Offsets(int size, std::size_t stage_bytes, std::size_t lane_bytes)
    : counts_bytes(device::round_up(sizeof(std::int64_t) * index(size), kLineBytes)),
      slot_bytes(sizeof(Slot) + counts_bytes + kEagerBytes),
      slots(device::round_up(sizeof(RankBlock), kLineBytes)),
      mailboxes(slots + kSlots * slot_bytes),
      outbox_flags(mailboxes + index(size) * sizeof(Mailbox)),
      spare_slots(outbox_flags + (kOutboxSlots + index(size)) * sizeof(OutboxFlag)),
      outbox(device::round_up(spare_slots + index(size) * kSpareSlotBytes,
                              SharedBuffer::page_bytes())),
      stage(outbox + kOutboxSlots * kOutboxSlotBytes),
      lanes(device::round_up(stage + 2 * stage_bytes, kLineBytes)),
      end(device::round_up(lanes + index(size) * pair_bytes(lane_bytes),
                           SharedBuffer::page_bytes())) {}

Control::Control(std::byte* base, int size, std::size_t stage_bytes, std::size_t lane_bytes)
    : base_(base),
      ranks_(base + header_bytes()),
      size_(size),
      stage_bytes_(stage_bytes),
      lane_bytes_(lane_bytes),
      offsets_(size, stage_bytes, lane_bytes) {}

std::size_t Control::bytes(int size, std::size_t stage_bytes, std::size_t lane_bytes) {
  return header_bytes() + index(size) * Offsets(size, stage_bytes, lane_bytes).end;
}

// A slot says `first_count` until it is used, which is no operation's number for the next 2^32.
void Control::begin_counting(std::uint32_t first_count) const {
  header().first_count = first_count;
  for (int owner = 0; owner < size_; ++owner) {
    RankBlock& block = rank(owner);
    for (auto* counter : {&block.phase, &block.completed, &block.bell}) {
      counter->store(first_count, std::memory_order_relaxed);
    }
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      slot(owner, i).sequence.store(first_count, std::memory_order_relaxed);
    }
    for (int peer = 0; peer < size_; ++peer) {
      mailbox(owner, peer).pushed.store(first_count, std::memory_order_relaxed);
      mailbox(owner, peer).taken.store(first_count, std::memory_order_relaxed);
    }
  }
}

std::byte* Control::rank_base(int rank) const {
  return ranks_ + index(rank) * offsets_.end;
}

RankBlock& Control::rank(int rank) const {
  return *reinterpret_cast<RankBlock*>(rank_base(rank));
}

Slot& Control::slot(int rank, std::uint32_t sequence) const {
  return *reinterpret_cast<Slot*>(rank_base(rank) + offsets_.slots +
                                  (sequence % kSlots) * offsets_.slot_bytes);
}

std::int64_t* Control::counts(Slot& slot) const {
  return reinterpret_cast<std::int64_t*>(reinterpret_cast<std::byte*>(&slot) + sizeof(Slot));
}

std::byte* Control::eager(Slot& slot) const {
  return reinterpret_cast<std::byte*>(&slot) + sizeof(Slot) + offsets_.counts_bytes;
}

std::byte* Control::stage(int rank, std::uint32_t half) const {
  return rank_base(rank) + offsets_.stage + (half % 2) * stage_bytes_;
}

Mailbox& Control::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(rank_base(from) + offsets_.mailboxes)[to];
}

Lane& Control::lane(int from, int to, std::uint32_t number) const {
  return *reinterpret_cast<Lane*>(rank_base(from) + offsets_.lanes +
                                  index(to) * pair_bytes(lane_bytes_) +
                                  number * (sizeof(Lane) + lane_bytes_));
}

OutboxFlag& Control::outbox_flag(int rank, std::uint32_t slot) const {
  return reinterpret_cast<OutboxFlag*>(rank_base(rank) + offsets_.outbox_flags)[slot];
}

std::byte* Control::outbox(int rank, std::uint32_t slot) const {
  if (slot < kOutboxSlots) {
    return rank_base(rank) + offsets_.outbox + slot * kOutboxSlotBytes;
  }
  return rank_base(rank) + offsets_.spare_slots + (slot - kOutboxSlots) * kSpareSlotBytes;
}

}  // namespace trireme::detail
