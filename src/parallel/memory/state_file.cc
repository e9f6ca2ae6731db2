#include "parallel/memory/state_file.h"

#include <cerrno>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::detail {

namespace {

const char* what_helps_a_folder(int reason) {
  switch (reason) {
    case ENOENT:
      return "make the folder, or name another one";
    case ENOTDIR:
      return "it is a file: name a folder";
    case EACCES:
    case EROFS:
      return "files cannot be made there: allow it, or name another folder";
    default:
      return "name another folder";
  }
}

}  // namespace

StateFile::StateFile(const std::string& folder, int rank, std::uint64_t bytes)
    : path_(concat(folder, "/trireme-states-of-rank-", rank, "-XXXXXX")) {
  file_ = FileDescriptor(mkostemp(path_.data(), O_CLOEXEC));
  const int reason = errno;
  TRIREME_CHECK(file_.valid(),
                "EngineOptions::offload: no file could be made in \"{}\" for the optimizer states "
                "of rank {}: {}; {}",
                {folder, rank, errno_text(reason), what_helps_a_folder(reason)});
  TRIREME_CHECK(
      unlink(path_.c_str()) == 0,
      "EngineOptions::offload: the file \"{}\" cannot lose its name ({}), and would be left "
      "behind: remove it, and name another folder",
      {path_, errno_text(errno)});
  reserve(folder, rank, bytes);
  struct statfs system {};
  in_memory_ = fstatfs(file_.get(), &system) == 0 &&
               (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
  const int flags = fcntl(file_.get(), F_GETFL);
  direct_ = !in_memory_ && flags >= 0 && fcntl(file_.get(), F_SETFL, flags | O_DIRECT) == 0;
}

void StateFile::reserve(const std::string& folder, int rank, std::uint64_t bytes) const {
  struct statvfs disk {};
  const bool known = fstatvfs(file_.get(), &disk) == 0;
  const std::uint64_t free = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  const auto refuse = [&](const std::string& found) {
    throw ConfigError(
        concat("EngineOptions::offload: the optimizer states of rank {} take {} bytes in \"{}\", "
               "found {}: free up space, name a folder on another disk, or divide the states "
               "among more ranks (EngineOptions::zero)",
               {rank, bytes, folder, found}));
  };
  // Where files may not grow so far (ulimit -f), the kernel would end the process.
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    refuse(concat("a limit of {} bytes for files (ulimit -f)", {limit.rlim_cur}));
  }
  int reason = 0;
  do {
    reason = fallocate(file_.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (reason == EINTR);
  if (reason == EOPNOTSUPP) {  // no file system that can promise it: looks, at least
    reason = known && free < bytes                                    ? ENOSPC
             : ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0 ? 0
                                                                      : errno;
  }
  if (reason != 0) {
    refuse(known && (reason == ENOSPC || reason == EDQUOT)
               ? concat("{} free ({})", {free, errno_text(reason)})
               : errno_text(reason));
  }
}

bool StateFile::goes_on_through_cache() const {
  if (!direct_.exchange(false)) {
    return false;
  }
  return fcntl(file_.get(), F_SETFL, fcntl(file_.get(), F_GETFL) & ~O_DIRECT) == 0;
}

void StateFile::fail(const char* what, std::uint64_t at, const std::string& reason) const {
  throw DataError(
      path_,
      static_cast<std::int64_t>(at),
      concat("\"{}\" (which has no name any more), byte {}: the optimizer states could not be {}: "
             "{}; look at the disk (dmesg), and go on from the last checkpoint",
             {path_, at, what, reason}));
}

void StateFile::read(std::uint64_t from, std::byte* to, std::size_t bytes) const {
  while (bytes > 0) {
    const ssize_t got = pread(file_.get(), to, bytes, static_cast<off_t>(from));
    if (got < 0 && (errno == EINTR || (errno == EINVAL && goes_on_through_cache()))) {
      continue;
    }
    if (got <= 0) {
      fail("read", from, got == 0 ? "the file ends there" : errno_text(errno));
    }
    from += static_cast<std::uint64_t>(got);
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

void StateFile::write(std::uint64_t to, const std::byte* from, std::size_t bytes) const {
  while (bytes > 0) {
    const ssize_t done = pwrite(file_.get(), from, bytes, static_cast<off_t>(to));
    if (done < 0 && (errno == EINTR || (errno == EINVAL && goes_on_through_cache()))) {
      continue;
    }
    if (done <= 0) {
      fail("written", to, done == 0 ? "nothing was written" : errno_text(errno));
    }
    to += static_cast<std::uint64_t>(done);
    from += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

}  // namespace trireme::detail
