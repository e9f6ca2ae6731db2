#pragma once

#include "parallel/parameter_table.h"
#include "parallel/unit.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"

namespace trireme::detail {

// Adds the rows of all ranks' gradients of an embedding, in rank order, to the sums of `range`,
// which begin at `sums`. `gradient` is this rank's, sparse and coalesced; undefined where it has
// none. Rows travel as indices and values. Collective.
void sum_rows(const Unit& unit,
              const Parameter& parameter,
              const at::Tensor& gradient,
              Range range,
              std::byte* sums,
              Communicator& ranks,
              MemoryLedger& ledger);

}  // namespace trireme::detail
