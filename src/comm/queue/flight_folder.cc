#include "comm/queue/flight_folder.h"

#include <cerrno>
#include <ctime>
#include <filesystem>

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/queue/old_flights.h"
#include "trireme/core/error.h"
#include "trireme/core/file_write.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

constexpr char kElsewhere[] =
    "set TRIREME_LOG_DIR (trireme run --log-dir) to a folder of your own for flight records";

// The folder `name` in `parent`, made where there is none: ours, and nobody else's to write.
FileDescriptor open_private(const FileDescriptor& parent,
                            const std::string& name,
                            const std::string& path) {
  if (mkdirat(parent.get(), name.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(
        concat("the folder ", path, " cannot be created: ", errno_text(errno), "; ", kElsewhere));
  }
  FileDescriptor folder(
      openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid()) {
    const bool is_other = errno == ELOOP || errno == ENOTDIR;
    throw Error(
        concat("expected a folder of this user at {}, found {}; {}",
               {path,
                is_other ? "a link or something else that is not a folder" : errno_text(errno),
                kElsewhere}));
  }
  struct stat status {};
  if (fstat(folder.get(), &status) != 0 || status.st_uid != geteuid()) {
    throw Error(concat("expected a folder of user {} at {}, found one of user {}; {}",
                       {geteuid(), path, status.st_uid, kElsewhere}));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw Error(
        concat("expected a folder that only user {} can write at {}, found one that others can: "
               "chmod go-w {}, or {}",
               {geteuid(), path, path, kElsewhere}));
  }
  return folder;
}

std::string unused_name(const std::string& name) {
  TRIREME_ASSERT(sodium_init() >= 0, "libsodium cannot find a source of random numbers");
  return concat(".", name, ".", randombytes_random(), ".", getpid());
}

}  // namespace

FlightFolder FlightFolder::named(const std::string& path) {
  FlightFolder folder;
  folder.path_ = path;
  return folder;
}

FlightFolder FlightFolder::temporary(const std::string& job_digest) {
  std::error_code error;
  const auto base = std::filesystem::temp_directory_path(error);
  FlightFolder folder;
  folder.base_ = error ? "." : base.string();
  folder.private_ = {concat("trireme-", geteuid()), job_digest};
  folder.path_ = folder.base_;
  for (const std::string& name : folder.private_) {
    folder.path_ += "/" + name;
  }
  return folder;
}

void FlightFolder::remove_old() const {
  if (!base_.empty()) {
    const std::time_t now = std::time(nullptr);
    remove_old_flights(concat(base_, "/", private_.front()), now, jobs_run_since(now));
  }
}

FileDescriptor FlightFolder::open_folder() const {
  const bool is_named = base_.empty();
  if (is_named) {
    std::error_code error;
    std::filesystem::create_directories(path_, error);  // where it fails, opening says why
  }
  std::string path = is_named ? path_ : base_;
  FileDescriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    throw Error(
        concat("the folder ", path, " cannot be opened: ", errno_text(errno), "; ", kElsewhere));
  }
  for (const std::string& name : private_) {
    path += "/" + name;
    folder = open_private(folder, name, path);
  }
  return folder;
}

std::string FlightFolder::write(const std::string& name, const std::string& text) const {
  const FileDescriptor folder = open_folder();
  std::string path = concat(path_, "/", name);
  // A new file takes the name over: a link that has it is replaced, not followed, and a pipe is not
  // waited for.
  const std::string fresh = unused_name(name);
  FileDescriptor file(openat(folder.get(),
                             fresh.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             0666));  // less what the umask takes away
  if (!file.valid()) {
    throw Error(concat(path, " cannot be written: ", errno_text(errno), "; ", kElsewhere));
  }
  try {
    write_all(file.get(), path, text.data(), text.size());
    if (renameat(folder.get(), fresh.c_str(), folder.get(), name.c_str()) != 0) {
      throw Error(concat(path, " cannot be replaced: ", errno_text(errno), "; ", kElsewhere));
    }
  } catch (...) {
    unlinkat(folder.get(), fresh.c_str(), 0);
    throw;
  }
  return path;
}

void FlightFolder::write_summary(const std::string& group, const std::string& text) const {
  const std::string name = concat("flight-summary", group.empty() ? "" : "-group-" + group, ".txt");
  try {
    write(name, text);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, concat("no ", name, ": ", error.what()));
  }
}

}  // namespace trireme::detail
