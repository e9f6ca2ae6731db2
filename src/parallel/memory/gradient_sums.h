#pragma once

#include <memory>
#include <vector>

#include "parallel/memory/part_context.h"
#include "parallel/memory/touched_rows.h"

namespace trireme::detail {

// Where the sums of a step's gradients are, by unit (Ownership::summed), and how they reach those
// who read them. Where whole gradients are kept, this rank's range of them becomes sums. Those of a
// sparse unit are rows, and no runs of elements.
class GradientSums {
 public:
  explicit GradientSums(const PartContext& context);
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;
  ~GradientSums() { released_.forget(); }  // nobody will write to these sums again

  // Elements of a unit, of those that are kept here. Runs have owners: operations may outlive this.
  Span at(std::size_t unit, Range range) const;
  Span mine(std::size_t unit) const { return at(unit, context_.plan.ownership.mine(unit)); }
  // The sums of a part of a parameter that is inside one rank's range: this rank's, and with DDP,
  // where everyone updates everything, those of any owner, read where they are.
  ConstSpan of_owner(std::size_t unit, const Piece& piece) const;
  // Of a sparse unit.
  TouchedRows& rows(std::size_t unit) { return units_[unit].rows; }
  const TouchedRows& rows(std::size_t unit) const { return units_[unit].rows; }
  // Whole gradients of this rank, for SumOrder::kLocalFirst where the sums are divided.
  Span local(std::size_t unit, Range range) const;

  // The sums are complete: those who read them can (Ownership::reach). Collective.
  void publish();
  // Makes the sums whole in this rank's memory. Collective.
  void gather_whole();
  // A path has made those of a unit whole itself, for this step.
  void gathered(std::size_t unit) { units_[unit].whole = true; }
  // Elements of a unit become `values`, which are the same on all ranks. After publish();
  // collective.
  void set(std::size_t unit, Range range, const ConstSpan& values);
  // They have been read; for the next step. Collective.
  void release();
  // Before they are written to again: everyone has read them.
  void wait_until_released() { released_.wait(); }

 private:
  struct Sums {
    SharedBuffer shared;
    Span run;
    std::int64_t first = 0;  // the element at the beginning of `run`
    TouchedRows rows;
    Span local;
    bool whole = false;  // in this step
    std::vector<MemoryLedger::Charge> charges;
  };

  void gather_rows();

  PartContext context_;
  std::vector<Sums> units_;
  Work released_;
  bool whole_ = false;
};

}  // namespace trireme::detail
