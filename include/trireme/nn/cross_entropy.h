#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace trireme::nn {

// The mean cross entropy of linear(x, weight), a score for each word, with these targets: x
// [..., columns], weight [words, columns], targets [...] of int64. Targets that are `ignored` count
// for nothing; without any other, the mean is that of no numbers (NaN). The result is float32 where
// x has 16 bits.
//
// The scores of all rows are never there at once: kernels (see kernels.h) take the rows chunk by
// chunk, and compute the gradients of x and weight while a chunk's scores are there, that of weight
// in float32. Backward then has nothing left to do but multiply. A target that is no word ends the
// process' work on the GPU with a message, as with LibTorch's operators.
at::Tensor linear_cross_entropy(const at::Tensor& x,
                                const at::Tensor& weight,
                                const at::Tensor& targets,
                                std::int64_t ignored = -100);

}  // namespace trireme::nn
