#include "trireme/tensor/memory_limit.h"

#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include "trireme/core/error.h"

namespace trireme {
namespace {

std::atomic<std::int64_t> g_used{0};
std::atomic<std::int64_t> g_peak{0};
std::atomic<std::int64_t> g_limit{0};
std::atomic<std::int64_t> g_most{0};

// What went beyond the limit first, until somebody asks.
struct Excess {
  std::mutex mutex;
  std::atomic<bool> noted{false};
  std::string text;
  std::optional<bool> onednn;  // was in use when an operator was refused memory
};

Excess& excess() {
  static auto* const instance = new Excess;  // tensors may outlive every static object
  return *instance;
}

std::string note(std::size_t bytes, std::int64_t used, std::int64_t limit, bool refused) {
  std::string text = detail::concat(
      "a tensor of {} bytes does not fit: the rank's tensors take {} of {} bytes (memory_limit)",
      {bytes, used, limit > 0 ? limit : g_most.load(std::memory_order_relaxed)});
  Excess& all = excess();
  const std::lock_guard lock(all.mutex);
  if (!all.noted) {
    all.text = text;
  }
  if (refused && !all.onednn) {
    all.onednn = at::globalContext().userEnabledMkldnn();
  }
  all.noted = true;
  return text;
}

// To what is used; returns what is then.
std::int64_t add(std::size_t bytes) {
  const std::int64_t limit = g_limit.load(std::memory_order_relaxed);
  const std::int64_t most = g_most.load(std::memory_order_relaxed);
  if (bytes > std::numeric_limits<std::int64_t>::max() / 2) {
    throw MemoryError(note(bytes, g_used, limit, true));
  }
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t now = g_used.fetch_add(size, std::memory_order_relaxed) + size;
  const bool refused = most > 0 && now > most;
  if (refused || (limit > 0 && now > limit)) {
    const std::string text = note(bytes, now - size, limit, refused);
    if (refused) {
      g_used.fetch_sub(size, std::memory_order_relaxed);
      throw MemoryError(text);
    }
  }
  return now;
}

void raise_peak(std::int64_t now) {
  std::int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (now > peak && !g_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

// A block begins with its size, so that counting asks no allocator: LibTorch's is malloc in some
// builds and mimalloc in others. The size takes as much room as tensors are aligned to.
constexpr std::size_t kHead = c10::gAlignment;

void release(void* memory) {
  if (memory != nullptr) {
    std::byte* const block = static_cast<std::byte*>(memory) - kHead;
    g_used.fetch_sub(*reinterpret_cast<const std::int64_t*>(block), std::memory_order_relaxed);
    c10::free_cpu(block);
  }
}

// LibTorch's allocation, counted. Allocations may come and go on any thread. The pointer is its own
// context, which oneDNN's raw allocations ask for.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = bytes == 0 ? nullptr : counted(bytes);
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void* counted(std::size_t bytes) {
    const std::int64_t now = add(bytes);
    try {
      auto* const block = static_cast<std::byte*>(c10::alloc_cpu(bytes + kHead));
      *reinterpret_cast<std::int64_t*>(block) = static_cast<std::int64_t>(bytes);
      raise_peak(now);
      return block + kHead;
    } catch (...) {
      const auto size = static_cast<std::int64_t>(bytes);
      g_used.fetch_sub(size, std::memory_order_relaxed);
      note(bytes, now - size, g_limit.load(std::memory_order_relaxed), true);
      throw;
    }
  }
};

}  // namespace

void MemoryLimit::set(std::uint64_t bytes, std::uint64_t most) {
  static auto* const allocator = new CountingAllocator;  // lives as long as any tensor may
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(allocator, kPriority); });
  g_limit.store(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  g_most.store(static_cast<std::int64_t>(most), std::memory_order_relaxed);
  forget();
}

void MemoryLimit::count(std::size_t bytes) {
  raise_peak(add(bytes));
}

void MemoryLimit::discount(std::size_t bytes) noexcept {
  g_used.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

std::uint64_t MemoryLimit::limit_bytes() {
  return static_cast<std::uint64_t>(g_limit.load(std::memory_order_relaxed));
}

std::uint64_t MemoryLimit::most_bytes() {
  return static_cast<std::uint64_t>(g_most.load(std::memory_order_relaxed));
}

std::uint64_t MemoryLimit::used_bytes() {
  return static_cast<std::uint64_t>(g_used.load(std::memory_order_relaxed));
}

std::uint64_t MemoryLimit::peak_bytes() {
  return static_cast<std::uint64_t>(g_peak.load(std::memory_order_relaxed));
}

void MemoryLimit::reset_peak(std::uint64_t earlier) {
  g_peak.store(std::max(g_used.load(std::memory_order_relaxed), static_cast<std::int64_t>(earlier)),
               std::memory_order_relaxed);
}

bool MemoryLimit::exceeded() {
  return excess().noted.load(std::memory_order_acquire);
}

bool MemoryLimit::forget() {
  Excess& all = excess();
  if (!all.noted.load(std::memory_order_acquire)) {
    return false;
  }
  const std::lock_guard lock(all.mutex);
  if (all.onednn) {
    at::globalContext().setUserEnabledMkldnn(*all.onednn);
    all.onednn.reset();
  }
  all.noted = false;
  return true;
}

void MemoryLimit::check() {
  if (!exceeded()) {
    return;
  }
  std::string text;
  {
    Excess& all = excess();
    const std::lock_guard lock(all.mutex);
    text = all.text;
  }
  forget();
  throw MemoryError(text);
}

}  // namespace trireme
