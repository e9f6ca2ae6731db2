#pragma once

#include <cstddef>

namespace trireme {

// Memory of every rank that the others read when they need it, without its doing anything: a thread
// of each rank answers. Made by Communicator::expose. Dropped on all ranks, when nobody reads.
class Window {
 public:
  virtual ~Window() = default;

  // Bytes [offset, offset + bytes) of what `rank` has exposed, into `to`. Blocks; from any thread.
  // Throws CommError when the rank is gone or does not answer by the deadline. What the rank writes
  // meanwhile is a race: order it with a collective.
  virtual void read(int rank, std::size_t offset, std::size_t bytes, std::byte* to) = 0;
};

}  // namespace trireme
