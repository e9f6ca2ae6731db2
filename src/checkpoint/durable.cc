#include "checkpoint/durable.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/file_write.h"

namespace trireme::detail {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  const std::string reason = errno_text(errno);
  throw CheckpointError(path, -1, concat("\"", path, "\" could not be ", what, ": ", reason));
}

}  // namespace

void sync_folder(const std::string& folder) {
  const FileDescriptor handle(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.valid()) {
    fail(folder, "opened to write it to disk");
  }
  // Some file systems have no fsync for folders, and need none.
  if (fsync(handle.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail(folder, "written to disk");
  }
}

void sync_folders_above(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  struct stat here {};
  if (error || stat(whole.c_str(), &here) != 0) {
    fail(folder, "found");
  }
  for (fs::path at = whole.parent_path(); !at.empty(); at = at.parent_path()) {
    struct stat above {};
    // Whoever may not look into a folder has not made the ones below it.
    if (stat(at.c_str(), &above) != 0 || above.st_dev != here.st_dev ||
        access(at.c_str(), R_OK) != 0) {
      return;
    }
    sync_folder(at.string());
    if (at == at.parent_path()) {
      return;
    }
  }
}

void write_whole(const std::string& path, const std::string& text) {
  const std::filesystem::path target(path);
  const std::string partial =
      (target.parent_path() / concat(".", target.filename().string(), "-", getpid())).string();
  FileDescriptor file(open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) {
    fail(path, "created");
  }
  try {
    write_all(file.get(), path, text.data(), text.size());
    if (fsync(file.get()) != 0) {
      fail(path, "written to disk");
    }
    file.reset();
    if (std::rename(partial.c_str(), path.c_str()) != 0) {
      fail(path, "renamed");
    }
  } catch (const CheckpointError&) {
    unlink(partial.c_str());
    throw;
  } catch (const Error& error) {
    unlink(partial.c_str());
    throw CheckpointError(path, -1, error.what());
  }
}

void write_durably(const std::string& path, const std::string& text) {
  write_whole(path, text);
  sync_folder(std::filesystem::path(path).parent_path().string());
}

}  // namespace trireme::detail
