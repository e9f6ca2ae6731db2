#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "device/buffer.h"

namespace trireme::detail {

// A bounded copy of what is to be written: pieces of memory that one thread fills and another
// empties. Where it has room for everything, the first never waits.
class Snapshot {
 public:
  struct Piece {
    std::byte* data = nullptr;
    std::size_t bytes = 0;  // that are filled
  };

  // For `total` bytes, in memory of at most `limit` (0: as much as that takes), pieces being
  // multiples of `block`. Memory is kept for the next time. Nothing may be under way.
  void begin(std::size_t total, std::size_t limit, std::size_t block);

  std::size_t piece_bytes() const { return piece_bytes_; }
  std::size_t memory_bytes() const { return memory_.size_bytes(); }

  // The filling side. The time it waited is added to `waited`.
  std::byte* take_empty(double& waited);
  void put_full(Piece piece);
  void end();  // no more will come

  // The emptying side; nothing where all is done.
  std::optional<Piece> take_full();
  void put_empty(std::byte* data);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  device::Buffer memory_;
  std::size_t piece_bytes_ = 0;
  std::vector<std::byte*> empty_;
  std::vector<Piece> full_;  // from next_full_ on, in order
  std::size_t next_full_ = 0;
  bool ended_ = false;
};

}  // namespace trireme::detail
