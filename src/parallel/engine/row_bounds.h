#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "parallel/memory/optimizer_memory.h"
#include "parallel/model/bounded_rows.h"

namespace trireme::detail {

// Scales the rows that a step has looked up of embeddings with max_norm. Note [rows with a bound]
// says why then and there.
class RowBounds {
 public:
  RowBounds(const PartContext& context, ParameterMemory& parameters, OptimizerMemory& states)
      : context_(context),
        parameters_(parameters),
        states_(states),
        seen_(context.plan.parameters) {}

  // The factors of rows that are too long, of those that any rank has looked up; the same on all
  // ranks. Before an update. Collective.
  struct Scaled {
    std::size_t parameter = 0;
    std::int64_t row = 0;
    double factor = 1;
  };
  std::vector<Scaled> measure();
  // In an update, before the optimizer: what this rank updates of them.
  void apply(const std::vector<Scaled>& rows);
  void forget() { seen_.forget(); }

 private:
  // Sorted, once each.
  std::vector<std::int64_t> union_of(const std::vector<std::int64_t>& rows);

  PartContext context_;
  ParameterMemory& parameters_;
  OptimizerMemory& states_;
  BoundedRows seen_;
};

}  // namespace trireme::detail
