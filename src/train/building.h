#pragma once

#include <cstdint>
#include <string>

namespace trireme::detail {

// Of the memory that is free, what the tensors of a rank never get more of, since the kernel would
// begin to kill.
inline constexpr double kMostOfFreeMemory = 0.95;

// While it lives, a tensor that would take more than there is (MemoryError) is refused, so that a
// model that is too large is an error, and not the kernel's choice of whom to kill. `limit`: the
// setting memory_limit, with which one may ask for more, or for none; `free`: of this rank.
class BuildingLimit {
 public:
  BuildingLimit(const std::string& limit, double free_bytes);
  ~BuildingLimit();
  BuildingLimit(const BuildingLimit&) = delete;
  BuildingLimit& operator=(const BuildingLimit&) = delete;

 private:
  std::uint64_t limit_before_;
  std::uint64_t most_before_;
};

}  // namespace trireme::detail
