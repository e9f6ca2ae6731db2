#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {

// A file as read-only memory. Pages come from disk when they are touched and go when memory is
// short, so the file may be larger than memory.
//
// The size is the one at opening. A file that is cut shorter while it is mapped ends the process
// with SIGBUS at the first touch beyond its end: there is no way to find out in time, and data that
// changes under a run is not worth a guard on every read.
class MappedFile {
 public:
  // Throws DataError for what is not a regular file with at least one byte that can be read.
  explicit MappedFile(const std::string& path);
  // What an open descriptor holds, under this name; that may be closed afterwards.
  MappedFile(const std::string& path, const FileDescriptor& content);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const char* begin() const { return data_; }
  const char* end() const { return data_ + size_; }
  std::int64_t size() const { return size_; }
  std::string_view bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  std::int64_t offset_of(const char* place) const { return place - data_; }

  // How the file will be read from now on: once from its start to its end, or here and there.
  void advise_one_pass() const;
  void advise_random_reads() const;

 private:
  void map(const FileDescriptor& content);

  std::string path_;
  const char* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace trireme::detail
