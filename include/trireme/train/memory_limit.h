#pragma once

#include <cstdint>

namespace trireme {

// Bounds what the CPU tensors of this process take together, so that a batch that is too large is
// an error that can be handled (MemoryError) and not the kernel's choice of whom to kill. Memory
// that engines hold is mapped elsewhere and not counted. One for the whole process, because
// LibTorch has one allocator; tensors made before the first call are not counted.
class MemoryLimit {
 public:
  static void set(std::uint64_t bytes);  // 0: counts only
  static std::uint64_t limit_bytes();    // what was set
  static std::uint64_t used_bytes();
  static std::uint64_t peak_bytes();  // since reset_peak()
  static void reset_peak();
};

}  // namespace trireme
