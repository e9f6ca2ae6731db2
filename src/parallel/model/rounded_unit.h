#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "parallel/model/parameter_table.h"
#include "trireme/compress/compressor.h"
#include "trireme/shard/flat_layout.h"

namespace trireme::detail {

// Note [rounded parameters]
// With EngineOptions::round_weights a model computes with what its matrices' float32 masters are
// after they were encoded and decoded. Blocks count from each parameter's beginning, and owners
// have whole ones (Ownership), so that a value depends on the masters alone: not on the stage, and
// not on the number of ranks. Parameters of one dimension, and those that would not take fewer
// bytes, stay exact, and travel with the others as they are.

// How the parameters of a unit become bytes, one after another. Ranges begin and end between
// blocks, or where a parameter does. Several threads may call all of it.
class RoundedUnit {
 public:
  // Null where all of its parameters stay exact.
  static std::shared_ptr<const RoundedUnit> of(const FlatLayout& layout,
                                               const std::vector<std::size_t>& parameters,
                                               const std::vector<Parameter>& table,
                                               std::shared_ptr<const Compressor> format);

  // By parameter, elements that have one owner.
  std::vector<std::int64_t> blocks() const;

  // Where the bytes of an element begin.
  std::size_t begin(std::int64_t element) const;
  std::size_t bytes(Range range) const { return begin(range.end) - begin(range.begin); }
  std::size_t bytes() const { return begins_.back(); }
  std::vector<std::int64_t> counts(const std::vector<Range>& ranges) const;

  // `values` are those of the range, and so are the bytes.
  void encode(Range range, const float* values, std::byte* to) const;
  void decode(Range range, const std::byte* from, float* values) const;
  // What is left of values; `to` may be where they are.
  void round(Range range, const float* values, float* to) const;

 private:
  RoundedUnit() = default;
  BlockKey key_of(const Piece& piece, std::int64_t done) const;

  FlatLayout layout_;
  std::shared_ptr<const Compressor> format_;
  std::vector<std::size_t> parameters_;  // in the table
  std::vector<char> rounded_;            // by parameter of the unit
  std::vector<std::int64_t> offsets_;    // by parameter, its first element
  std::vector<std::size_t> begins_;      // by parameter its first byte, and the end of all
};

}  // namespace trireme::detail
