// LibTorch's allocation as some of its builds have it (mimalloc on arm64), for LD_PRELOAD: not
// malloc's, so malloc knows nothing of its blocks; freed ones are kept and given out again; and
// another message when there is no more.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>

namespace c10 {

// Declared here, not included: these take the place of LibTorch's own.
__attribute__((visibility("default"))) void* alloc_cpu(std::size_t bytes);
__attribute__((visibility("default"))) void free_cpu(void* memory);

namespace {

constexpr std::size_t kHead = 64;  // as much as tensors are aligned to
constexpr std::size_t kMost = std::size_t{1} << 46;

struct Blocks {
  std::mutex mutex;
  std::array<std::vector<std::byte*>, 64> free;  // by the power of two that a block can hold
};

Blocks& blocks() {
  static auto* const instance = new Blocks;
  return *instance;
}

}  // namespace

void* alloc_cpu(std::size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  const std::size_t size = std::bit_ceil(bytes);
  std::byte* block = nullptr;
  if (bytes < kMost) {
    Blocks& all = blocks();
    const std::lock_guard lock(all.mutex);
    auto& kept = all.free[static_cast<std::size_t>(std::countr_zero(size))];
    if (!kept.empty()) {
      block = kept.back();
      kept.pop_back();
    }
  }
  if (block == nullptr) {
    void* const mapped = bytes >= kMost ? MAP_FAILED
                                        : mmap(nullptr,
                                               kHead + size,
                                               PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS,
                                               -1,
                                               0);
    if (mapped == MAP_FAILED) {
      throw std::runtime_error("DefaultCPUAllocator: not enough memory: you tried to allocate " +
                               std::to_string(bytes) + " bytes.");
    }
    block = static_cast<std::byte*>(mapped);
  }
  // What malloc would take for its own notes is nonsense.
  std::memset(block, 'o', kHead);
  std::memcpy(block, &size, sizeof(size));
  return block + kHead;
}

void free_cpu(void* memory) {
  if (memory == nullptr) {
    return;
  }
  std::byte* const block = static_cast<std::byte*>(memory) - kHead;
  std::size_t size = 0;
  std::memcpy(&size, block, sizeof(size));
  Blocks& all = blocks();
  const std::lock_guard lock(all.mutex);
  all.free[static_cast<std::size_t>(std::countr_zero(size))].push_back(block);
}

}  // namespace c10
