#pragma once

#include <memory>
#include <vector>

#include "parallel/engine/engine_parts.h"

namespace trireme::detail {

// Parameters that are whole and ordinary for a while: Phase::kGathered.
class GatherScope {
 public:
  GatherScope(EngineParts& parts, std::vector<std::size_t> parameters);
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;
  ~GatherScope() = default;
  void close();
  bool open() const { return open_; }

 private:
  // Every parameter of the scope can be taken back.
  void check() const;
  // Rank 0's values, in the order of the parameter's memory.
  at::Tensor agreed_values(std::size_t parameter) const;

  EngineParts& parts_;
  std::weak_ptr<const void> alive_;
  std::vector<std::size_t> parameters_;
  MemoryLedger::Charge charge_;
  bool open_ = true;
};

}  // namespace trireme::detail
