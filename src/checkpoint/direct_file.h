#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// A file that is written from its beginning to its end in large pieces, past the page cache where
// the file system can: that is faster, and leaves the cache and a processor to the training.
class DirectFile {
 public:
  // Memory, offsets and all lengths but the last are multiples of this.
  static constexpr std::size_t kAlignment = 4096;

  // `path` must not exist. Throws CheckpointError.
  DirectFile(std::string path, std::size_t block_bytes);

  // `data` is aligned and has room for the rounded length. Checksums its blocks.
  void append(const std::byte* data, std::size_t bytes);
  // On disk, with its size.
  void finish();

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return size_; }
  const std::vector<std::uint64_t>& checksums() const { return checksums_; }

 private:
  [[noreturn]] void fail(const char* what) const;
  void write(const std::byte* data, std::size_t bytes);

  std::string path_;
  std::size_t block_bytes_;
  FileDescriptor file_;
  bool direct_ = true;
  std::uint64_t size_ = 0;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace trireme::detail
