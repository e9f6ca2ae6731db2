#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/checkpoint/tensor_source.h"

namespace trireme {

// A tensor that is not the same in two sources.
struct TensorDifference {
  std::string title;  // "weight tokens.weight"
  std::string form;   // "float32 [2, 3] and float32 [2, 4]"; empty: type and shape are the same
  std::int64_t numel = 0;
  // Where the shapes are the same: elements whose bits differ (in different types: whose values
  // do), and the largest difference of two; infinite where only one is a number.
  std::int64_t differing = 0;
  double largest = 0;
};

struct TensorComparison {
  std::vector<std::string> only_a;  // titles
  std::vector<std::string> only_b;
  std::vector<TensorDifference> different;
  std::size_t equal = 0;  // tensors

  bool same() const { return only_a.empty() && only_b.empty() && different.empty(); }
};

// Compares element by element, whatever the order in memory, holding one tensor of each at a time.
// `by_kind`: tensors of another kind are others; without it only the names count.
TensorComparison compare_tensors(const TensorSource& a, const TensorSource& b, bool by_kind = true);

}  // namespace trireme
