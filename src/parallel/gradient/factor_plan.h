#pragma once

#include <string>
#include <vector>

#include "parallel/memory/part_context.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// Which parameters travel as factors, and where the terms of each are (LowRankPath).
struct FactorPlan {
  struct Term {
    std::size_t parameter = 0;
    std::int64_t rows = 0;  // of its outermost dimension in memory; 0: it travels exactly
    std::int64_t columns = 0;
    Range first{};   // in the first sum: P, or the gradient; one element of it, the last, counts
    Range second{};  // in the second: Q

    bool factored() const { return rows > 0; }
    std::int64_t count_at() const { return first.end - 1; }
  };

  int rank = 0;
  std::vector<Term> terms;           // of dense parameters, in their order
  std::vector<std::size_t> term_of;  // by parameter
  std::int64_t first_numel = 0;
  std::int64_t second_numel = 0;

  std::vector<char> factored() const;  // by parameter
  std::vector<std::string> exact_parameters(const PartContext& context) const;
};

// Throws ConfigError where no parameter is larger than its factors.
FactorPlan plan_factors(const PartContext& context);

}  // namespace trireme::detail
