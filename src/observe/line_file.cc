#include "trireme/observe/line_file.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/file_write.h"
#include "trireme/core/log.h"

namespace trireme {
namespace {

using detail::concat;
using detail::errno_text;

constexpr auto kLongestWait = std::chrono::milliseconds(200);

FileDescriptor open_for_lines(const std::string& path, int flags) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666));
  if (!file.valid()) {
    throw Error(concat("\"", path, "\" could not be created: ", errno_text(errno)));
  }
  return file;
}

}  // namespace

LineFile::LineFile(const std::string& path)
    : path_(path),
      file_(open_for_lines(path, O_TRUNC)),
      flushed_(std::chrono::steady_clock::now()) {}

LineFile::LineFile(const std::string& path, std::uint64_t kept_bytes)
    : path_(path), file_(open_for_lines(path, 0)), flushed_(std::chrono::steady_clock::now()) {
  if (ftruncate(file_.get(), static_cast<off_t>(kept_bytes)) != 0) {
    throw Error(concat("\"", path, "\" could not be cut: ", errno_text(errno)));
  }
}

LineFile::~LineFile() {
  try {
    flush();
  } catch (const Error& error) {
    log(LogLevel::kError, error.what());
  }
}

void LineFile::add(const std::string& line) {
  waiting_ += line;
  waiting_ += '\n';
  if (std::chrono::steady_clock::now() - flushed_ > kLongestWait) {
    flush();
  }
}

void LineFile::flush() {
  if (!waiting_.empty()) {
    std::string text;
    text.swap(waiting_);  // what could not be written is not tried again
    write_all(file_.get(), path_, text.data(), text.size());
  }
  flushed_ = std::chrono::steady_clock::now();
}

void LineFile::sync() const {
  if (fsync(file_.get()) != 0) {
    throw Error(concat("\"", path_, "\" could not be put on disk: ", errno_text(errno)));
  }
}

void write_whole_file(const std::string& path, const std::string& text) {
  const std::string partial = concat(path, ".partial-", getpid());
  const FileDescriptor file(open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) {
    throw Error(concat("\"", path, "\" could not be created: ", errno_text(errno)));
  }
  try {
    write_all(file.get(), path, text.data(), text.size());
    if (std::rename(partial.c_str(), path.c_str()) != 0) {
      throw Error(concat("\"", path, "\" could not be written: ", errno_text(errno)));
    }
  } catch (...) {
    unlink(partial.c_str());
    throw;
  }
}

}  // namespace trireme
