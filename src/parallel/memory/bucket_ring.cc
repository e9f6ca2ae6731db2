#include "parallel/memory/bucket_ring.h"

#include <numeric>

#include "trireme/core/error.h"

namespace trireme::detail {

BucketRing::BucketRing(Communicator& ranks,
                       std::size_t slot_bytes,
                       std::size_t count,
                       MemoryLedger& ledger,
                       Device device)
    : ledger_(&ledger),
      device_(device),
      slot_bytes_(slot_bytes),
      charge_(ledger.charge(MemoryCategory::kBuckets, slot_bytes * count)) {
  const auto shared =
      std::make_shared<const SharedBuffer>(ranks.allocate(slot_bytes * count, device));
  for (std::size_t slot = 0; slot < count; ++slot) {
    slots_.push_back({shared->data() + slot * slot_bytes, shared});
    free_.push_back(static_cast<int>(slot));
  }
}

int BucketRing::take() {
  const int slot = free_.back();
  free_.pop_back();
  return slot;
}

// Private memory, because shared memory is made by all ranks together, and only this one needs it.
int BucketRing::grow() {
  TRIREME_ASSERT(device_.is_host(), "a ring on a GPU has a slot for every bucket");
  const auto memory = std::make_shared<const device::Buffer>(slot_bytes_);
  growth_.push_back(ledger_->charge(MemoryCategory::kBuckets, slot_bytes_));
  slots_.push_back({memory->data(), memory});
  return static_cast<int>(slots_.size()) - 1;
}

Span BucketRing::run(int slot, std::int64_t numel, Dtype dtype) const {
  const Slot& at = slots_[static_cast<std::size_t>(slot)];
  return {at.data, numel, dtype, at.owner, device_};
}

void BucketRing::shrink() {
  if (growth_.empty()) {
    return;
  }
  slots_.resize(slots_.size() - growth_.size());
  growth_.clear();
  free_.resize(slots_.size());
  std::iota(free_.begin(), free_.end(), 0);
}

}  // namespace trireme::detail
