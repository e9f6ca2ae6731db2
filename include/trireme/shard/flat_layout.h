#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/core/dtype.h"
#include "trireme/shard/range.h"

namespace trireme {

// Part of one parameter inside a range of a flat buffer.
struct Piece {
  std::size_t parameter = 0;
  std::int64_t begin = 0;  // first element, counted inside the parameter
  std::int64_t numel = 0;
  std::int64_t offset = 0;  // of that element, counted from the start of the flat buffer

  bool operator==(const Piece&) const = default;
};

// Several parameters one after another in one buffer. Each begins at a multiple of 64 bytes, in
// every layout alike, because kernels may choose their instructions by alignment and the bits must
// not depend on the layout. The gaps hold nothing and belong to no parameter.
class FlatLayout {
 public:
  static constexpr std::size_t kAlignmentBytes = 64;

  FlatLayout() = default;
  FlatLayout(const std::vector<std::int64_t>& numels, Dtype dtype);

  Dtype dtype() const { return dtype_; }
  std::size_t count() const { return numels_.size(); }
  std::int64_t offset(std::size_t parameter) const { return offsets_[parameter]; }
  std::int64_t numel(std::size_t parameter) const { return numels_[parameter]; }
  // Elements of all parameters, without the gaps.
  std::int64_t parameters_numel() const { return parameters_numel_; }
  // Elements of the whole buffer, gaps included: a multiple of the alignment.
  std::int64_t total_numel() const { return total_numel_; }

  // The parameters, or parts of them, inside `range` of the buffer, in order.
  std::vector<Piece> pieces(Range range) const;

 private:
  Dtype dtype_ = Dtype::kFloat32;
  std::vector<std::int64_t> numels_;
  std::vector<std::int64_t> offsets_;
  std::int64_t parameters_numel_ = 0;
  std::int64_t total_numel_ = 0;
};

}  // namespace trireme
