#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <vector>

#include "trireme/comm/operation.h"
#include "trireme/core/dtype.h"

// What collectives must produce, computed the plain way: one element at a time, in rank order.

namespace trireme::testing {

using Bytes = std::vector<std::uint8_t>;

// The value of a 16-bit float, and the 16-bit float nearest to a value (ties to even), by
// arithmetic on the definition of the formats.
double half_value(std::uint16_t bits);
std::uint16_t nearest_half(float value);
float bfloat16_value(std::uint16_t bits);
std::uint16_t nearest_bfloat16(float value);

// `numel` elements that rank `rank` contributes: different for every rank, with magnitudes so
// mixed that the order of a sum shows in its bits.
Bytes make_input(Dtype dtype, std::int64_t numel, int rank);

// The reduction of `inputs` in order.
Bytes reduce_in_order(Dtype dtype, ReduceOp op, const std::vector<Bytes>& inputs);

// What all ranks of a world contribute, and what becomes of it: for the process that forks the
// ranks, so that they need not compute it each for itself.
struct Terms {
  Terms(Dtype of, std::int64_t count, int size, std::initializer_list<ReduceOp> reductions);

  Dtype dtype;
  std::int64_t numel;
  std::vector<Bytes> inputs;
  std::map<ReduceOp, Bytes> reduced;
};

}  // namespace trireme::testing
