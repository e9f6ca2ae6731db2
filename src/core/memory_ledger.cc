#include "trireme/core/memory_ledger.h"

#include <numeric>
#include <utility>

namespace trireme {

std::string_view memory_category_name(MemoryCategory category) {
  constexpr std::string_view kNames[] = {"parameters",
                                         "gradients",
                                         "optimizer",
                                         "buckets",
                                         "gather",
                                         "averages",
                                         "buffers",
                                         "rounding",
                                         "host",
                                         "disk"};
  return kNames[static_cast<int>(category)];
}

std::int64_t MemoryUse::model_bytes() const {
  return of(MemoryCategory::kParameters) + of(MemoryCategory::kGradients) +
         of(MemoryCategory::kOptimizer);
}

std::int64_t MemoryUse::total() const {
  return std::accumulate(now.begin(), now.end(), std::int64_t{0}) - of(MemoryCategory::kHost) -
         of(MemoryCategory::kDisk);
}

MemoryLedger::Charge::Charge(std::shared_ptr<MemoryLedger> ledger,
                             MemoryCategory category,
                             std::int64_t bytes)
    : ledger_(std::move(ledger)), category_(category), bytes_(bytes) {
  ledger_->add(category_, bytes_);
}

MemoryLedger::Charge::Charge(Charge&& other) noexcept {
  *this = std::move(other);
}

MemoryLedger::Charge& MemoryLedger::Charge::operator=(Charge&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(category_, other.category_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryLedger::Charge::~Charge() {
  if (ledger_) {
    ledger_->add(category_, -bytes_);
  }
}

MemoryLedger::Charge MemoryLedger::charge(MemoryCategory category, std::size_t bytes) {
  return {shared_from_this(), category, static_cast<std::int64_t>(bytes)};
}

MemoryUse MemoryLedger::use() const {
  MemoryUse use;
  for (std::size_t i = 0; i < now_.size(); ++i) {
    use.now[i] = now_[i].load();
    use.peak[i] = peak_[i].load();
  }
  return use;
}

void MemoryLedger::add(MemoryCategory category, std::int64_t bytes) {
  const auto i = static_cast<std::size_t>(category);
  const std::int64_t now = now_[i].fetch_add(bytes) + bytes;
  std::int64_t peak = peak_[i].load();
  while (now > peak && !peak_[i].compare_exchange_weak(peak, now)) {
  }
}

}  // namespace trireme
