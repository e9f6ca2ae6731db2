#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "parallel/memory/part_context.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// A sum of float32 terms, one of every micro-batch, that every rank gets whole: added up in the
// order of the micro-batches, so that its bits do not depend on how many ranks there are.
class ChainSum {
 public:
  ChainSum(const PartContext& context, std::int64_t numel);
  ChainSum(const ChainSum&) = delete;
  ChainSum& operator=(const ChainSum&) = delete;
  ~ChainSum();  // as ~BucketPath

  // Memory for this rank's term of the next round.
  float* next_term();
  // The term is complete, but for ranges that have nothing. Collective, once in each round.
  void add(std::vector<Range> absent);
  // Waits for the terms of all rounds. Where none had anything, -0. Collective.
  float* whole();
  // For the next step.
  void reset();

  std::int64_t sent_bytes() const { return sent_bytes_; }  // to other ranks, so far

 private:
  Span part(const std::shared_ptr<float[]>& of, Range range) const;

  PartContext context_;
  const std::int64_t numel_;
  const Range own_;  // what this rank adds up for the others
  std::shared_ptr<float[]> sum_;
  std::deque<std::shared_ptr<float[]>> terms_;
  std::deque<Work> works_;
  std::deque<MemoryLedger::Charge> charges_;
  std::int64_t sent_bytes_ = 0;
};

}  // namespace trireme::detail
