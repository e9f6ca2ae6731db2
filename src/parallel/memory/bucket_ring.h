#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/buffer.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"

namespace trireme::detail {

// Memory for a few buckets, used over and over: shared by the ranks, so that they read it where it
// is. It can grow by private memory, which collectives copy, where waiting would be a circle.
class BucketRing {
 public:
  BucketRing() = default;
  BucketRing(Communicator& ranks,
             std::size_t slot_bytes,
             std::size_t count,
             MemoryLedger& ledger,
             Device device = {});

  bool has_free() const { return !free_.empty(); }
  int take();  // a free slot; there must be one
  int grow();  // a new one
  void give_back(int slot) { free_.push_back(slot); }
  void shrink();  // forgets what it grew by; all slots are free

  // The beginning of a slot. It has an owner: operations may outlive the ring.
  Span run(int slot, std::int64_t numel, Dtype dtype) const;
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t size() const { return slots_.size(); }

 private:
  MemoryLedger* ledger_ = nullptr;
  Device device_;
  std::size_t slot_bytes_ = 0;
  MemoryLedger::Charge charge_;
  std::vector<MemoryLedger::Charge> growth_;
  struct Slot {
    std::byte* data = nullptr;
    std::shared_ptr<const void> owner;
  };
  std::vector<Slot> slots_;
  std::vector<int> free_;
};

}  // namespace trireme::detail
