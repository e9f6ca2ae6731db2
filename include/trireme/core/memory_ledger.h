#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace trireme {

// What memory is for. The first three are what the ZeRO formulas count. The last two are elsewhere:
// what an engine has moved away from where it computes (EngineOptions::offload).
enum class MemoryCategory : std::uint8_t {
  kParameters = 0,
  kGradients = 1,  // sums, where the update reads them
  kOptimizer = 2,  // states, and the full-precision copies of parameters with fewer bits
  kBuckets = 3,    // gradients on their way; bounded by options
  kGather = 4,     // parameters put together for use, bounded by options, or sent rounded
  kAverages = 5,   // moving averages of the weights, where asked for
  kBuffers = 6,    // of the model (running statistics)
  kRounding = 7,   // what pages and alignment add to all of the above
  kHost = 8,       // of a model on a GPU, in the host's memory
  kDisk = 9,       // in a file
};
constexpr int kMemoryCategories = 10;
std::string_view memory_category_name(MemoryCategory category);

// Bytes by category, now and at the worst moment.
struct MemoryUse {
  std::array<std::int64_t, kMemoryCategories> now{};
  std::array<std::int64_t, kMemoryCategories> peak{};

  std::int64_t of(MemoryCategory category) const { return now[static_cast<std::size_t>(category)]; }
  // Parameters, gradients and optimizer: what the formulas predict.
  std::int64_t model_bytes() const;
  std::int64_t total() const;  // of all but what is elsewhere
};

// Counts what this process holds. Shared pages are charged once, to the rank that owns them.
class MemoryLedger : public std::enable_shared_from_this<MemoryLedger> {
 public:
  // Bytes on the books for as long as it lives.
  class Charge {
   public:
    Charge() = default;
    Charge(std::shared_ptr<MemoryLedger> ledger, MemoryCategory category, std::int64_t bytes);
    Charge(Charge&& other) noexcept;
    Charge& operator=(Charge&& other) noexcept;
    ~Charge();

   private:
    std::shared_ptr<MemoryLedger> ledger_;
    MemoryCategory category_ = MemoryCategory::kRounding;
    std::int64_t bytes_ = 0;
  };

  static std::shared_ptr<MemoryLedger> create() { return std::make_shared<MemoryLedger>(); }
  [[nodiscard]] Charge charge(MemoryCategory category, std::size_t bytes);
  MemoryUse use() const;

 private:
  void add(MemoryCategory category, std::int64_t bytes);

  std::array<std::atomic<std::int64_t>, kMemoryCategories> now_{};
  std::array<std::atomic<std::int64_t>, kMemoryCategories> peak_{};
};

}  // namespace trireme
