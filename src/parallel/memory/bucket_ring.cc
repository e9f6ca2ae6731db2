#include "parallel/memory/bucket_ring.h"

#include <numeric>

namespace trireme::detail {

BucketRing::BucketRing(Communicator& ranks,
                       std::size_t slot_bytes,
                       std::size_t count,
                       MemoryLedger& ledger,
                       Device device)
    : ledger_(&ledger), device_(device), slot_bytes_(slot_bytes) {
  const std::size_t all = count + (device.is_host() ? 0 : 1);
  charge_ = ledger.charge(MemoryCategory::kBuckets, slot_bytes * all);
  const auto shared =
      std::make_shared<const SharedBuffer>(ranks.allocate(slot_bytes * all, device));
  for (std::size_t slot = 0; slot < all; ++slot) {
    slots_.push_back({shared->data() + slot * slot_bytes, shared});
  }
  passage_ = device.is_host() ? -1 : static_cast<int>(count);
  free_all();
}

void BucketRing::free_all() {
  free_.resize(slots_.size());
  std::iota(free_.begin(), free_.end(), 0);
  std::erase(free_, passage_);
}

int BucketRing::take() {
  const int slot = free_.back();
  free_.pop_back();
  return slot;
}

int BucketRing::take_passage() {
  passage_is_free_ = false;
  return passage_;
}

void BucketRing::give_back(int slot) {
  if (slot == passage_) {
    passage_is_free_ = true;
  } else {
    free_.push_back(slot);
  }
}

// Private memory, because shared memory is made by all ranks together, and only this one needs it.
int BucketRing::grow() {
  const auto memory = std::make_shared<const device::Buffer>(slot_bytes_, device_);
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
  free_all();
}

}  // namespace trireme::detail
