#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/net/transport.h"
#include "trireme/shard/range.h"

namespace trireme::detail {

// Long messages go in pieces, so that one is added up or passed on while the next is on its way.
constexpr std::size_t kPieceBytes = 512 << 10;
// What ranks send each other in a call goes at once where it is this little, and all that comes to
// a rank is no more than that: in pieces for which the receiver need not be ready yet
// (kEagerPieceBytes). What is longer goes in pieces for which it is.
constexpr std::size_t kAtOnceBytes = 2 << 20;
constexpr std::size_t kMostAtOnceBytes = 8 << 20;
constexpr bool goes_at_once(std::size_t bytes, int peers) {
  return bytes <= kAtOnceBytes && bytes * static_cast<std::size_t>(peers) <= kMostAtOnceBytes;
}

// How long the pieces are of what one rank sends another; `peers`: how many do.
constexpr std::size_t piece_bytes_for(std::size_t bytes, int peers) {
  if (goes_at_once(bytes, peers)) {
    return kEagerPieceBytes;
  }
  // Memory is needed for pieces of all of them.
  return std::max<std::size_t>(kEagerPieceBytes + 4096,
                               kPieceBytes / static_cast<std::size_t>(std::max(1, peers / 4)));
}
// Pieces from one rank that may wait to be added up, where that many ranks send some.
constexpr std::size_t pieces_ahead(int peers) {
  return peers <= 16 ? 4 : 2;
}

// A run of elements cut into pieces of at most `most_bytes`.
class Pieces {
 public:
  Pieces(Range whole, std::size_t element, std::size_t most_bytes)
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
