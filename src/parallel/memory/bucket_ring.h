#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/buffer.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"

namespace trireme::detail {

// Memory for a few buckets, used over and over: shared by the ranks, so that they read it where it
// is. It can grow by private memory where waiting would be a circle. That of the host is copied by
// collectives; that of a GPU, which nobody else sees, by whoever launches the bucket, into one more
// slot that is kept for this: the passage.
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
  void give_back(int slot);
  void shrink();  // forgets what it grew by; all slots are free

  // A bucket can be launched from there.
  bool is_seen(int slot) const { return device_.is_host() || slot < passage_ + 1; }
  bool passage_is_free() const { return passage_is_free_; }
  int take_passage();

  // The beginning of a slot. It has an owner: operations may outlive the ring.
  Span run(int slot, std::int64_t numel, Dtype dtype) const;
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t size() const { return slots_.size() - (passage_ >= 0 ? 1 : 0); }

 private:
  void free_all();

  MemoryLedger* ledger_ = nullptr;
  Device device_;
  std::size_t slot_bytes_ = 0;
  MemoryLedger::Charge charge_;
  std::vector<MemoryLedger::Charge> growth_;
  struct Slot {
    std::byte* data = nullptr;
    std::shared_ptr<const void> owner;
  };
  std::vector<Slot> slots_;  // shared ones, the passage, those that it grew by
  std::vector<int> free_;    // all but the passage
  int passage_ = -1;         // there is none on the host
  bool passage_is_free_ = true;
};

}  // namespace trireme::detail
