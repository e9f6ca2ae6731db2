#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "trireme/core/file_descriptor.h"

namespace trireme {

// A file that grows line by line (JSON lines, a log). Lines are handed to the system whole, at most
// a few tenths of a second after they were added, so that another program can read along and a
// killed run loses next to nothing. Throws Error with file and reason when a write fails (a full
// disk). Not thread-safe, but for sync().
class LineFile {
 public:
  explicit LineFile(const std::string& path);  // begins a new file
  // Continues an existing file after its first so many bytes; the rest is cut off. Creates the file
  // if there is none.
  LineFile(const std::string& path, std::uint64_t kept_bytes);
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile();  // flushes; a failure is logged

  void add(const std::string& line);  // without its end
  void flush();
  // Returns when what was flushed is on disk. May be called from another thread.
  void sync() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileDescriptor file_;
  std::string waiting_;
  std::chrono::steady_clock::time_point flushed_;
};

// Writes a small file so that it is there whole or not at all (a temporary name, then a rename).
void write_whole_file(const std::string& path, const std::string& text);

}  // namespace trireme
