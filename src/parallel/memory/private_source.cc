#include <algorithm>
#include <mutex>

#include "parallel/memory/unit_source.h"

namespace trireme::detail {
namespace {

class PrivateSource final : public UnitSource {
 public:
  PrivateSource(std::vector<std::size_t> unit_bytes,
                std::size_t limit,
                FetchUnit fetch,
                std::shared_ptr<MemoryLedger> ledger)
      : bytes_(std::move(unit_bytes)),
        limit_(limit),
        fetch_(std::move(fetch)),
        ledger_(std::move(ledger)),
        blocks_(bytes_.size()) {}

  const std::byte* acquire(std::size_t unit) override {
    Block block = take(bytes_[unit]);
    fetch_(unit, block.memory.data());
    const std::lock_guard lock(mutex_);
    blocks_[unit] = std::move(block);
    return blocks_[unit].memory.data();
  }

  void release(std::size_t unit) override {
    const std::lock_guard lock(mutex_);
    in_use_ -= bytes_[unit];
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
    const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const Block& block) {
      return block.memory.size_bytes() == bytes;
    });
    if (fits != spare_.end()) {
      Block block = std::move(*fits);
      spare_.erase(fits);
      in_use_ += bytes;
      return block;
    }
    // Of another size: spare memory goes back, as much as the limit asks for.
    const auto held = [&] {
      std::size_t total = in_use_ + bytes;
      for (const Block& block : spare_) {
        total += block.memory.size_bytes();
      }
      return total;
    };
    while (!spare_.empty() && held() > limit_) {
      spare_.erase(spare_.begin());
    }
    Block block{device::Buffer(bytes), ledger_->charge(MemoryCategory::kGather, bytes)};
    in_use_ += bytes;
    return block;
  }

  const std::vector<std::size_t> bytes_;  // of each unit
  const std::size_t limit_;
  const FetchUnit fetch_;
  const std::shared_ptr<MemoryLedger> ledger_;

  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Block> blocks_;  // by unit, while it is whole
  std::vector<Block> spare_;   // for the next unit of its size
  std::size_t in_use_ = 0;
};

}  // namespace

std::unique_ptr<UnitSource> make_private_source(std::vector<std::size_t> unit_bytes,
                                                std::size_t limit,
                                                FetchUnit fetch,
                                                std::shared_ptr<MemoryLedger> ledger) {
  return std::make_unique<PrivateSource>(
      std::move(unit_bytes), limit, std::move(fetch), std::move(ledger));
}

}  // namespace trireme::detail
