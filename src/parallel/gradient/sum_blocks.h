#pragma once

#include <vector>

#include "parallel/memory/gradient_sums.h"

namespace trireme::detail {

// The sums of whole blocks. What an owner has of a unit may begin and end in the middle of one: the
// rest of these two is kept here, and is the same as what the neighbour has there.
class SumBlocks {
 public:
  SumBlocks(const PartContext& context, GradientSums& sums, std::int64_t block);

  // This rank's range of a unit, with the rest of its blocks.
  Range held(std::size_t unit) const;

  // Where `range`, which is held, is in one piece; no elements: in several.
  Span place(std::size_t unit, Range range) const;
  // All of `range`, which is held.
  void add(std::size_t unit, Range range, const float* term, bool first);
  void read(std::size_t unit, Range range, float* to) const;
  void write(std::size_t unit, Range range, const float* from) { add(unit, range, from, true); }

 private:
  struct Ends {
    Range own;
    std::int64_t begin = 0;  // of the block in which `own` begins
    std::vector<float> head;
    std::vector<float> tail;
  };
  // What a range consists of: before this rank's own, its own, after it.
  struct Part {
    Span run;
    std::int64_t at = 0;  // from the range's beginning
  };
  std::vector<Part> parts(std::size_t unit, Range range) const;

  GradientSums& sums_;
  mutable std::vector<Ends> units_;
};

}  // namespace trireme::detail
