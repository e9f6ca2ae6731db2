#include "parallel/accumulate.h"

#include <vector>

#include "comm/reduce_kernels.h"

namespace trireme::detail {

void accumulate(std::byte* sums,
                Dtype sum_dtype,
                const std::byte* gradient,
                Dtype dtype,
                std::int64_t numel,
                bool first) {
  const bool widen = sum_dtype != dtype;
  std::vector<const std::byte*> inputs;
  if (!first && !widen) {
    inputs.push_back(sums);
  }
  inputs.push_back(gradient);
  reduce({.dtype = dtype,
          .op = ReduceOp::kSum,
          .divisor = 1,
          .inputs = inputs,
          .outputs = {&sums, 1},
          .numel = static_cast<std::size_t>(numel),
          .widen = widen,
          .accumulator = first || !widen ? nullptr : sums});
}

}  // namespace trireme::detail
