#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/dtype.h"
#include "trireme/shard/range.h"

// The state of a training as named ranges: what checkpoints are made of, and all that they know of
// an engine.

namespace trireme {

// Kinds of state that every engine has; those of an optimizer are "optimizer.exp_avg" and so on.
inline constexpr const char* kWeightKind = "weight";    // parameters, at full precision
inline constexpr const char* kAverageKind = "average";  // moving averages of them
inline constexpr const char* kBufferKind = "buffer";
inline constexpr const char* kRandomKind = "random";  // a generator's bytes, one for each rank

// A tensor of the training's state; the same list on every rank.
struct StateTensor {
  std::string kind;
  std::string name;  // as the model calls it: "blocks.0.linear.weight"
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;
  // Of its elements in memory, which has no holes; empty: row by row.
  std::vector<std::int64_t> strides;

  std::int64_t numel() const;
  std::size_t size_bytes() const { return static_cast<std::size_t>(numel()) * dtype_bytes(dtype); }
  // "weight blocks.0.linear.weight"
  std::string title() const { return kind + " " + name; }
  bool operator==(const StateTensor&) const = default;
};

// Elements of one of the tensors, in the order of memory, where this rank has them.
struct StateSlice {
  std::size_t tensor = 0;  // in StateView::tensors
  Range range;
  std::byte* data = nullptr;
};

struct StateView {
  std::vector<StateTensor> tensors;
  std::vector<StateSlice> slices;  // of this rank

  std::size_t size_bytes() const;  // of the slices
};

// The strides of a tensor whose elements lie row by row.
std::vector<std::int64_t> row_strides(const std::vector<std::int64_t>& shape);

}  // namespace trireme
