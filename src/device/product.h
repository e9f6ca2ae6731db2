#pragma once

#include <cstdint>

#include "trireme/core/dtype.h"

namespace trireme::device {

// c = alpha * (a b) + beta * c, with matrices row by row without gaps; c overlaps neither a nor b.
// An element of a b is the chain ((0 + a[0] b[0]) + a[1] b[1]) + ..., each operation rounded on its
// own: the bits do not depend on the shape, on how rows and columns are divided among calls, on the
// machine or on the device.
struct Product {
  Dtype dtype = Dtype::kFloat32;  // of all three: float32 or float64
  std::int64_t rows = 0;          // of c
  std::int64_t columns = 0;       // of c
  std::int64_t depth = 0;         // terms of each sum
  const void* a = nullptr;        // rows x depth
  const void* b = nullptr;        // depth x columns
  void* c = nullptr;
  bool a_transposed = false;  // `a` is stored as depth x rows
  bool b_transposed = false;  // `b` is stored as columns x depth
  double alpha = 1;
  double beta = 0;  // with 0, what c had does not matter
};

}  // namespace trireme::device
