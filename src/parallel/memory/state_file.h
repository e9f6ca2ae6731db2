#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// A file for what is too large for memory and means nothing to another process. It has no name any
// more when its first byte is written, so that nothing is left of it, however this process ends.
// Read and written past the page cache where the file system can: memory is what there is too
// little of.
class StateFile {
 public:
  // Memory, offsets and lengths are multiples of this.
  static constexpr std::size_t kAlignment = 4096;

  // Zeros, for which the disk has room: all of it is taken here. Throws ConfigError where the
  // folder cannot be used, or has too little room.
  StateFile(const std::string& folder, int rank, std::uint64_t bytes);

  // All of the bytes, from several threads. Throw DataError with the file and the place.
  void read(std::uint64_t from, std::byte* to, std::size_t bytes) const;
  void write(std::uint64_t to, const std::byte* from, std::size_t bytes) const;

  bool past_cache() const { return direct_; }
  // The folder is no disk's, but memory after all: a tmpfs.
  bool in_memory() const { return in_memory_; }
  const std::string& path() const { return path_; }

 private:
  void reserve(const std::string& folder, int rank, std::uint64_t bytes) const;
  // After a call that a file system has refused past the cache only: goes on through it.
  bool goes_on_through_cache() const;
  [[noreturn]] void fail(const char* what, std::uint64_t at, const std::string& reason) const;

  std::string path_;  // as it was
  FileDescriptor file_;
  mutable std::atomic<bool> direct_{false};
  bool in_memory_ = false;
};

}  // namespace trireme::detail
