#pragma once

#include <string>

#include "trireme/core/file_descriptor.h"

namespace trireme {

// A file that gets its name when it is complete: until then it is "PATH.partial-PID", and it is
// removed where it is not finished. What processes that were killed have left of the same file is
// removed as it is created.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path);
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile();

  // Why it could not be created: the system's number; 0: it was.
  int error() const { return error_; }
  void check_created() const;  // throws Error
  int get() const { return file_.get(); }
  // On disk, under its name. Throws Error with file and reason.
  void finish();

 private:
  std::string path_;
  std::string partial_;
  int slot_ = -1;  // where signals find it
  FileDescriptor file_;
  int error_ = 0;
  bool finished_ = false;
};

// From now on, a signal that ends this process removes its partial files first. For programs;
// signals that are ignored or have a handler stay as they are.
void remove_partial_files_at_signals();

}  // namespace trireme
