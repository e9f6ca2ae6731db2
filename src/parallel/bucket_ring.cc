#include "parallel/bucket_ring.h"

#include <numeric>

namespace trireme::detail {

BucketRing::BucketRing(Communicator& ranks,
                       std::size_t slot_bytes,
                       std::size_t count,
                       MemoryLedger& ledger)
    : ledger_(&ledger),
      slot_bytes_(slot_bytes),
      shared_(std::make_shared<const SharedBuffer>(ranks.allocate(slot_bytes * count))),
      charge_(ledger.charge(MemoryCategory::kBuckets, slot_bytes * count)) {
  for (std::size_t slot = 0; slot < count; ++slot) {
    slots_.push_back(shared_->data() + slot * slot_bytes);
    free_.push_back(static_cast<int>(slot));
  }
}

int BucketRing::take() {
  const int slot = free_.back();
  free_.pop_back();
  return slot;
}

int BucketRing::grow() {
  growth_.push_back({std::make_shared<const HostMemory>(slot_bytes_),
                     ledger_->charge(MemoryCategory::kBuckets, slot_bytes_)});
  slots_.push_back(growth_.back().memory->data());
  return static_cast<int>(slots_.size()) - 1;
}

std::shared_ptr<const void> BucketRing::owner(int slot) const {
  const std::size_t first = slots_.size() - growth_.size();
  const auto index = static_cast<std::size_t>(slot);
  if (index < first) {
    return shared_;
  }
  return growth_[index - first].memory;
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
