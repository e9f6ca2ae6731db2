#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/core/dtype.h"
#include "trireme/core/reduce_op.h"

namespace trireme::device {

// One reduction of `numel` elements: for every i,
//   y = chain over inputs k = 0, 1, ... of inputs[k][i], then / divisor for an average
//   outputs[j][i] = y for every j
// `inputs` has at least one entry. An output may be the same memory as an input (in place); other
// overlaps are not allowed. The result depends on the values alone: not on alignment, on where a
// range was cut, or on the vector width of the machine.
struct Reduction {
  Dtype dtype;
  ReduceOp op;
  std::int64_t divisor;  // of kAverage: the number of ranks
  std::span<const std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::size_t numel;
  // Where the inputs are 16-bit floats and the outputs float32: sums are not rounded, and
  // `accumulator`, where present, is float32 and the first term of the chain. (Inputs of the
  // outputs' own type need no such thing: there an accumulator is one more input.)
  bool widen = false;
  const std::byte* accumulator = nullptr;
};

void reduce(const Reduction& reduction);

// float32 values into a 16-bit type, rounded as the result of a reduction of that type is.
void round_floats(Dtype dtype, const float* from, std::byte* to, std::size_t numel);

}  // namespace trireme::device
