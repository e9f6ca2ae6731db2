#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "trireme/shard/range.h"

namespace trireme::detail {

// Long messages go in pieces, so that one is added up or passed on while the next is on its way.
constexpr std::size_t kPieceBytes = 256 << 10;
// Pieces from one rank that may wait to be added up.
constexpr std::size_t kPiecesAhead = 8;

// A run of elements cut into pieces of at most `most_bytes`.
class Pieces {
 public:
  Pieces(Range whole, std::size_t element, std::size_t most_bytes = kPieceBytes)
      : whole_(whole),
        numel_(std::max<std::int64_t>(64,
                                      static_cast<std::int64_t>(most_bytes / element) / 64 * 64)) {}
  std::size_t count() const {
    return static_cast<std::size_t>((whole_.size() + numel_ - 1) / numel_);
  }
  Range operator[](std::size_t piece) const {
    const std::int64_t begin = whole_.begin + static_cast<std::int64_t>(piece) * numel_;
    return {begin, std::min(whole_.end, begin + numel_)};
  }
  std::int64_t most_numel() const { return std::min(numel_, whole_.size()); }

 private:
  Range whole_;
  std::int64_t numel_;
};

}  // namespace trireme::detail
