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

// Where elements are that are not in memory (EngineOptions::offload): a disk, say. They are bytes
// in a row, of which a slice says where its own begin. Calls throw what went wrong there. For one
// thread at a time.
class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual void read(std::uint64_t from, std::byte* to, std::size_t bytes) = 0;
  virtual void write(std::uint64_t to, const std::byte* from, std::size_t bytes) = 0;
};

// Elements of one of the tensors, in the order of memory, where this rank has them: in memory, or
// in a store.
struct StateSlice {
  std::size_t tensor = 0;  // in StateView::tensors
  Range range;
  std::byte* data = nullptr;
  StateStore* store = nullptr;  // null: they are at `data`
  std::uint64_t offset = 0;     // there

  // Bytes of it, from its own byte `begin` on, wherever they are.
  void read(std::uint64_t begin, std::byte* to, std::size_t bytes) const;
  void write(std::uint64_t begin, const std::byte* from, std::size_t bytes) const;
};

struct StateView {
  std::vector<StateTensor> tensors;
  std::vector<StateSlice> slices;  // of this rank

  std::size_t size_bytes() const;  // of the slices
};

// The strides of a tensor whose elements lie row by row.
std::vector<std::int64_t> row_strides(const std::vector<std::int64_t>& shape);

}  // namespace trireme
