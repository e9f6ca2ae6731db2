#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/checkpoint/manifest.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// Bytes of a file and where they go.
struct Fetch {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* to = nullptr;
};

// A data file of a checkpoint. Read in its blocks, each of which is checked before anything of it
// is believed.
//
// Note [read, not mapped]
// A mapped file that is cut short, or whose disk fails, kills the reader with SIGBUS; read() names
// the place instead. It is also faster: a block that lies inside one tensor is read to where it is
// wanted, and is checked while it is in the cache.
class BlockFile {
 public:
  // Throws CheckpointError where it is missing or has another size.
  BlockFile(const std::string& folder, const SavedFile& file, std::size_t block_bytes);

  // Throws CheckpointError (offset of the block) where a block is damaged.
  void fetch(std::vector<Fetch> wanted) const;

  // Reads and checks all blocks; returns what is wrong.
  std::vector<std::string> verify() const;

 private:
  std::uint64_t block_end(std::uint64_t block) const;
  void read(std::uint64_t offset, std::uint64_t bytes, std::byte* to) const;
  // Empty where the block is what was saved.
  std::string complaint(std::uint64_t block, const std::byte* bytes) const;

  std::string path_;
  const SavedFile& saved_;
  std::uint64_t block_bytes_;
  FileDescriptor file_;
};

}  // namespace trireme::detail
