#include "trireme/train/memory_limit.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include <malloc.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "trireme/core/error.h"

namespace trireme {
namespace {

std::atomic<std::int64_t> g_used{0};
std::atomic<std::int64_t> g_peak{0};
std::atomic<std::int64_t> g_limit{0};

void release(void* memory) {
  if (memory != nullptr) {
    g_used.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)),
                     std::memory_order_relaxed);
    c10::free_cpu(memory);
  }
}

// LibTorch's allocation, counted. What was allocated is asked of malloc, so nothing is stored with
// a tensor and allocations may come and go on any thread.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::int64_t limit = g_limit.load(std::memory_order_relaxed);
    const std::int64_t used = g_used.load(std::memory_order_relaxed);
    if (limit > 0 && used + static_cast<std::int64_t>(bytes) > limit) {
      throw MemoryError(detail::concat("a tensor of ",
                                       bytes,
                                       " bytes does not fit: the rank's tensors take ",
                                       used,
                                       " of ",
                                       limit,
                                       " bytes (memory_limit)"));
    }
    void* memory = c10::alloc_cpu(bytes);
    if (memory != nullptr) {
      const auto size = static_cast<std::int64_t>(malloc_usable_size(memory));
      const std::int64_t now = g_used.fetch_add(size, std::memory_order_relaxed) + size;
      std::int64_t peak = g_peak.load(std::memory_order_relaxed);
      while (now > peak && !g_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
      }
    }
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void MemoryLimit::set(std::uint64_t bytes) {
  static CountingAllocator allocator;  // lives as long as any tensor may
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&allocator, /*priority=*/1); });
  g_limit.store(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

std::uint64_t MemoryLimit::limit_bytes() {
  return static_cast<std::uint64_t>(g_limit.load(std::memory_order_relaxed));
}

std::uint64_t MemoryLimit::used_bytes() {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, g_used.load(std::memory_order_relaxed)));
}

std::uint64_t MemoryLimit::peak_bytes() {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, g_peak.load(std::memory_order_relaxed)));
}

void MemoryLimit::reset_peak() {
  g_peak.store(g_used.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace trireme
