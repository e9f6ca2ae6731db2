#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/parameter_table.h"
#include "parallel/unit.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"

namespace trireme::detail {

// This rank's gradient of an embedding, as rows on their way to being summed.
class SparseRows {
 public:
  // `gradient` is sparse and coalesced; undefined where this rank has none. `unit` outlives this.
  SparseRows(const Unit& unit, const Parameter& parameter, const at::Tensor& gradient);

  // Adds the rows of all ranks, in rank order, to the sums of `range`, which begin at `sums`. Rows
  // travel as indices and values. Collective; takes no memory of the tensors' allocator.
  void add_up(Range range, std::byte* sums, Communicator& ranks, MemoryLedger& ledger) const;

 private:
  const Unit& unit_;
  std::int64_t width_;
  at::Tensor indices_;
  at::Tensor values_;
};

}  // namespace trireme::detail
