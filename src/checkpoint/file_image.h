#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/checkpoint/manifest.h"
#include "trireme/shard/state_view.h"

namespace trireme::detail {

// The bytes of a rank's data file, as they will be, without holding them: a header and the slices
// one after another.
class FileImage {
 public:
  // A slice in the file: SavedPart, of which tensor.
  struct Part {
    std::size_t tensor = 0;
    Range range;
    std::uint64_t offset = 0;
  };

  FileImage(const std::string& path, const StateView& state);

  std::uint64_t size_bytes() const { return size_bytes_; }
  const std::vector<Part>& parts() const { return parts_; }

  // The next bytes of the file into `to`, at most `bytes`; returns how many there were.
  std::size_t copy_next(std::byte* to, std::size_t bytes);

 private:
  struct Piece {
    StateSlice slice;
    std::size_t bytes;
  };
  std::string header_;  // before the pieces
  std::vector<Part> parts_;
  std::vector<Piece> pieces_;
  std::uint64_t size_bytes_ = 0;
  std::size_t header_done_ = 0;
  std::size_t next_ = 0;  // piece
  std::size_t done_ = 0;  // bytes of it
};

}  // namespace trireme::detail
