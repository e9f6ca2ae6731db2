#pragma once

#include <memory>
#include <string>

#include "trireme/core/file_descriptor.h"
#include "trireme/core/partial_file.h"

namespace trireme {

// What a path of "-" stands for, wherever text is written.
inline bool is_standard_output(const std::string& path) {
  return path == "-";
}

// Text that a command writes: to standard output, or to a file that is there whole or not at all.
// A link to one stays a link, and what is no plain file (a pipe, a device) is written in place.
class OutputFile {
 public:
  // Empty or "-": standard output. Throws ConfigError, with the flag that named it, where it cannot
  // be opened.
  OutputFile(const std::string& path, const std::string& flag);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // what was not finished is removed

  // Both throw Error with file and reason (a full disk).
  void write(const std::string& text);
  void finish();

 private:
  [[noreturn]] void refuse(int error) const;
  int file() const { return partial_ ? partial_->get() : in_place_.get(); }

  std::string path_;  // empty: standard output
  std::string flag_;
  std::string waiting_;
  std::unique_ptr<PartialFile> partial_;  // or
  FileDescriptor in_place_;
};

// All of it.
void write_output(const std::string& path, const std::string& text, const std::string& flag);

}  // namespace trireme
