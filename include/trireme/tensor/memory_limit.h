#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme {

// Bounds what the CPU tensors of this process take together, so that a batch that is too large is
// an error that can be handled (MemoryError) and not the kernel's choice of whom to kill. Memory
// that engines hold is mapped elsewhere and not counted. One for the whole process, because
// LibTorch has one allocator; tensors made before the first call are not counted.
//
// An allocation above the limit succeeds and is noted; check() throws. The reason is that some of
// LibTorch's operators catch what an allocator throws, say nothing, and use another kernel from
// then on (docs/parity.md lists them): the error would be lost, and this rank would compute other
// bits than its peers. Only what would take more than `most`, where the kernel would have to kill
// somebody, is refused inside the operator; it is noted, too, and which kernels LibTorch uses is
// put back when the note is taken. Engine::backward checks by itself; call check() after a forward
// pass, between operators, to notice sooner.
class MemoryLimit {
 public:
  // 0: no limit, allocations are counted only. Forgets what was noted.
  static void set(std::uint64_t bytes, std::uint64_t most = 0);
  static std::uint64_t limit_bytes();  // what was set
  static std::uint64_t most_bytes();
  static std::uint64_t used_bytes();
  static std::uint64_t peak_bytes();  // since reset_peak()
  // To what is in use, or to an earlier peak where that was more.
  static void reset_peak(std::uint64_t earlier = 0);

  // For another allocator that takes this one's place for a while: what it gives and takes back.
  // The first throws, as an allocation here would.
  static void count(std::size_t bytes);
  static void discount(std::size_t bytes) noexcept;
  static constexpr std::uint8_t kPriority = 1;  // among LibTorch's allocators; less is ignored

  static bool exceeded();  // something was noted
  static void check();     // throws MemoryError, and forgets, when something was noted
  static bool forget();    // what exceeded() was
};

}  // namespace trireme
