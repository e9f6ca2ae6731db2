#pragma once

#include <cstdint>
#include <memory>

#include "trireme/compress/compressor.h"

// The arithmetic of PowerSGD (Vogels and others, 2019) on float32 matrices, row by row: M becomes
// P Q', with P an orthonormal basis of what M Q spans. Everything is added up in one order.

namespace trireme::detail {

// "powersgd:4": what is not a matrix travels exactly.
std::shared_ptr<const Compressor> make_low_rank(int rank);

// Two factors are fewer elements than the matrix.
inline bool saves_as_factors(std::int64_t rows, std::int64_t columns, int rank) {
  return (rows + columns) * rank < rows * columns;
}

// The columns of `p` (rows x rank) become orthonormal, by Gram and Schmidt, each twice; one that
// the others span becomes zeros.
void orthonormalise(float* p, std::int64_t rows, int rank);

// What the next step multiplies with, of the factor `q` (columns x rank) of this one: columns are
// scaled by powers of two, so that no gradient is too small or too large for the product, and those
// of zeros, which would stay so for good, are drawn anew. `key` says of what and when.
void prepare_factor(float* q, std::int64_t columns, int rank, std::uint64_t key);

}  // namespace trireme::detail
