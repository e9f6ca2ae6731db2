#include <algorithm>
#include <mutex>

#include "parallel/memory/unit_source.h"

namespace trireme::detail {
namespace {

class PrivateSource final : public UnitSource {
 public:
  explicit PrivateSource(FetchedUnits units)
      : units_(std::move(units)), blocks_(units_.bytes.size()) {}

  const std::byte* acquire(std::size_t unit) override {
    Block block = take(units_.bytes[unit]);
    units_.fetch(unit, block.memory.data());
    const std::lock_guard lock(mutex_);
    blocks_[unit] = std::move(block);
    return blocks_[unit].memory.data();
  }

  void release(std::size_t unit) override {
    const std::lock_guard lock(mutex_);
    in_use_ -= units_.bytes[unit];
    spare_.push_back(std::move(blocks_[unit]));
    blocks_[unit] = {};
  }

 private:
  // On the books for as long as it is held.
  struct Block {
    device::Buffer memory;
    MemoryLedger::Charge charge;
  };

  Block take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fits = std::ranges::find_if(
        spare_, [&](const Block& block) { return block.memory.size_bytes() == bytes; });
    if (fits != spare_.end()) {
      Block block = std::move(*fits);
      spare_.erase(fits);
      in_use_ += bytes;
      return block;
    }
    // Of another size: spare memory goes back, as much as the limit asks for. A GPU's is kept for
    // longer: whoever takes some or gives it back there waits for all work.
    const std::size_t most = units_.device.is_host() ? units_.limit : 2 * units_.limit;
    const auto held = [&] {
      std::size_t total = in_use_ + bytes;
      for (const Block& block : spare_) {
        total += block.memory.size_bytes();
      }
      return total;
    };
    while (!spare_.empty() && held() > most) {
      spare_.erase(spare_.begin());
    }
    Block block{device::Buffer(bytes, units_.device),
                units_.ledger->charge(MemoryCategory::kGather, bytes)};
    in_use_ += bytes;
    return block;
  }

  const FetchedUnits units_;

  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Block> blocks_;  // by unit, while it is whole
  std::vector<Block> spare_;   // for the next unit of its size
  std::size_t in_use_ = 0;
};

}  // namespace

std::unique_ptr<UnitSource> make_private_source(FetchedUnits units) {
  return std::make_unique<PrivateSource>(std::move(units));
}

}  // namespace trireme::detail
