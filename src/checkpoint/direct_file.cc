#include "checkpoint/direct_file.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "checkpoint/checksum.h"
#include "trireme/core/drill.h"
#include "trireme/core/error.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {

DirectFile::DirectFile(std::string path, std::size_t block_bytes)
    : path_(std::move(path)), block_bytes_(block_bytes) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  file_ = FileDescriptor(open(path_.c_str(), kFlags | O_DIRECT, 0666));
  if (!file_.valid() && errno == EINVAL) {
    // Not on this file system. It may have made the file before it refused.
    unlink(path_.c_str());
    direct_ = false;
    file_ = FileDescriptor(open(path_.c_str(), kFlags, 0666));
  }
  if (!file_.valid()) {
    fail("created");
  }
}

void DirectFile::fail(const char* what) const {
  const int reason = errno;
  throw CheckpointError(
      path_,
      static_cast<std::int64_t>(size_),
      concat("\"{}\", byte {}: the checkpoint could not be {}: {}{}",
             {path_,
              size_,
              what,
              errno_text(reason),
              reason == ENOSPC || reason == EDQUOT || reason == EFBIG
                  ? "; free up space; checkpoints that were complete are untouched"
                  : "; checkpoints that were complete are untouched"}));
}

void DirectFile::append(const std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += block_bytes_) {
    checksums_.push_back(checksum_of(data + at, std::min(block_bytes_, bytes - at)));
  }
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  write(data, direct_ ? rounded : bytes);
  mark(PulsePhase::kCheckpoint);
  size_ += bytes;
}

void DirectFile::write(const std::byte* data, std::size_t bytes) {
  if (drill_disk_is_full()) {
    errno = ENOSPC;
    fail("written");
  }
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t written =
        pwrite(file_.get(), data + done, bytes - done, static_cast<off_t>(size_ + done));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    const bool unaligned = written < 0 ? errno == EINVAL
                                       : static_cast<std::size_t>(written) % kAlignment != 0 &&
                                             done + static_cast<std::size_t>(written) < bytes;
    if (direct_ && unaligned) {
      // Goes on through the page cache.
      direct_ = false;
      if (fcntl(file_.get(), F_SETFL, fcntl(file_.get(), F_GETFL) & ~O_DIRECT) != 0) {
        fail("written");
      }
      done += written > 0 ? static_cast<std::size_t>(written) : 0;
      continue;
    }
    if (written <= 0) {
      errno = written == 0 ? EIO : errno;
      fail("written");
    }
    done += static_cast<std::size_t>(written);
  }
}

void DirectFile::finish() {
  // The last piece was rounded up.
  if (ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) {
    fail("cut to its length");
  }
  if (fsync(file_.get()) != 0) {
    fail("written to disk");
  }
  file_.reset();
}

}  // namespace trireme::detail
