#pragma once

#include <vector>

#include "compress/block_coder.h"
#include "parallel/gradient/sum_blocks.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {

// What a compressor with feedback has left out so far: of each micro-batch of a step, by its number
// and not by the rank that computes it, and of the sums, with their owners. So a checkpoint can be
// loaded by any number of ranks, which then go on alike. Of a compressor without: nothing.
//
// Only steps that were taken count: what a step leaves is written beside what it found.
class Residuals {
 public:
  // `kept`: by parameter. Without `sums`, nothing is left out of them.
  Residuals(const PartContext& context,
            const Compressor::Format& format,
            std::vector<char> kept,
            const SumBlocks* sums);

  // Of this rank's micro-batch of a round, from an element of a unit on.
  BlockCoder::Carried of_term(std::int64_t round, std::size_t unit, std::int64_t element);
  BlockCoder::Carried of_sum(std::size_t unit, std::int64_t element);
  // The step was taken. All elements have been encoded, or told to wait.
  void keep();
  // GradientPath::describe.
  void describe(StateView& view, bool saved);

 private:
  struct Kept {  // of one unit; empty: nothing is kept
    std::int64_t first = 0;
    std::vector<float> before;
    std::vector<float> after;

    Carry from(std::int64_t element);
  };
  struct Slot {  // a micro-batch
    std::vector<Kept> rest;
    std::vector<Kept> velocity;
  };
  void make(std::vector<Kept>& kept, std::size_t unit, Range range);
  void append(StateView& view,
              const std::string& kind,
              std::vector<Kept>* kept,
              bool sums,
              bool saved) const;

  PartContext context_;
  const Compressor::Format format_;
  const std::vector<char> kept_;  // by parameter
  const bool of_sums_;
  std::int64_t micro_batches_ = 0;  // of a step
  std::vector<Slot> slots_;         // of this rank, by round
  std::vector<Kept> sums_;
  std::vector<MemoryLedger::Charge> charges_;
};

}  // namespace trireme::detail
