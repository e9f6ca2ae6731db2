#include "trireme/core/output_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/file_write.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::errno_text;

constexpr std::size_t kMostWaiting = std::size_t{64} << 10;

// The links there are files that are open (/dev/stdout leads there), which have no other name that
// could be trusted.
bool in_proc(const std::string& path) {
  return path.starts_with("/proc/");
}

// What a path is once links are followed, also where the last one leads to nothing yet.
std::string followed(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system's
  fs::path at = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    const fs::path folder = fs::canonical(at.has_parent_path() ? at.parent_path() : ".", error);
    if (!error) {
      at = folder / at.filename();
    }
    const fs::path next = in_proc(at.string()) ? fs::path() : fs::read_symlink(at, error);
    if (next.empty()) {
      break;
    }
    at = at.parent_path() / next;  // `next` alone where it is absolute
  }
  return at.string();
}

[[noreturn]] void fail_standard_output() {
  throw Error(concat("standard output could not be written: ", errno_text(errno)));
}

}  // namespace

OutputFile::OutputFile(const std::string& path, const std::string& flag)
    : path_(is_standard_output(path) ? "" : path), flag_(flag) {
  if (path_.empty()) {
    return;
  }
  struct stat there {};
  const bool exists = stat(path.c_str(), &there) == 0;
  if (!exists && errno != ENOENT) {
    refuse(errno);
  }
  const std::string target = followed(path);
  if (exists && (!S_ISREG(there.st_mode) || in_proc(target))) {
    // Appended: what the shell has put into a file behind /dev/stdout stays.
    in_place_ = FileDescriptor(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    if (!in_place_.valid()) {
      refuse(errno);
    }
    return;
  }
  if (exists && access(path.c_str(), W_OK) != 0) {
    refuse(errno);  // to take its place would only need the folder's permission
  }
  partial_ = std::make_unique<PartialFile>(target);
  if (partial_->error() != 0) {
    refuse(partial_->error());
  }
  if (exists) {
    fchmod(file(), there.st_mode & 07777U);  // who may read it stays; no harm where it fails
  }
}

OutputFile::~OutputFile() = default;

void OutputFile::refuse(int error) const {
  throw ConfigError(
      concat("{}: expected a file that can be written, found \"{}\", which could not be opened: {}",
             {flag_, path_, errno_text(error)}));
}

void OutputFile::write(const std::string& text) {
  if (path_.empty()) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
      fail_standard_output();
    }
    return;
  }
  waiting_ += text;
  if (waiting_.size() >= kMostWaiting) {
    write_all(file(), path_, waiting_.data(), waiting_.size());
    waiting_.clear();
  }
}

void OutputFile::finish() {
  if (path_.empty()) {
    if (std::fflush(stdout) != 0) {
      fail_standard_output();
    }
    return;
  }
  write_all(file(), path_, waiting_.data(), waiting_.size());
  waiting_.clear();
  if (partial_) {
    partial_->finish();
  }
}

void write_output(const std::string& path, const std::string& text, const std::string& flag) {
  OutputFile file(path, flag);
  file.write(text);
  file.finish();
}

}  // namespace trireme
