#pragma once

#include <map>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "parallel/memory/parameter_memory.h"
#include "server/row_changes.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// The parameters as their owner has them; what ranks compute with is elsewhere.
class OwnedMemory final : public ParameterMemory {
 public:
  explicit OwnedMemory(const PartContext& context) {
    for (std::size_t u = 0; u < context.plan.units.size(); ++u) {
      const Unit& unit = context.plan.units[u];
      const std::int64_t numel = context.plan.ownership.mine(u).size();
      const std::size_t bytes = static_cast<std::size_t>(numel) * dtype_bytes(unit.dtype);
      memory_.push_back(
          {device::Buffer(bytes), context.ledger.charge(MemoryCategory::kParameters, bytes)});
      owned_.emplace_back(memory_.back().buffer.data(), numel, unit.dtype);
    }
  }

  Span owned(std::size_t unit) override { return owned_[unit]; }
  // Nobody else reads it; what is changed of rows is for those who have older ones.
  void announce_rows(std::size_t unit, std::span<const std::int64_t> rows) override {
    rows_[unit] = std::vector<std::int64_t>(rows.begin(), rows.end());
  }
  void begin_update() override { rows_.clear(); }
  void updated(std::size_t) override {}
  void finish_update() override {}
  // By the last update.
  ChangedRows changed(std::size_t unit) const {
    const auto found = rows_.find(unit);
    return found == rows_.end() ? ChangedRows{.whole = true, .rows = {}, .values = {}}
                                : ChangedRows{.whole = false, .rows = found->second, .values = {}};
  }

  // The engine's own memory does all of these.
  void adopt(std::size_t) override { refuse(); }
  void read(std::size_t, Range, const Span&) override { refuse(); }
  void write(std::size_t, Range, const ConstSpan&) override { refuse(); }
  void attach(std::size_t) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw InternalError("a shard has no tensors"); }

  struct Memory {
    device::Buffer buffer;
    MemoryLedger::Charge charge;
  };
  std::vector<Memory> memory_;
  std::vector<Span> owned_;
  std::map<std::size_t, std::vector<std::int64_t>> rows_;  // by unit
};

}  // namespace trireme::detail
