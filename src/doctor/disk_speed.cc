#include "doctor/disk_speed.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "doctor/quantity.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {
namespace {

constexpr std::size_t kPiece = 4 << 20;
constexpr std::size_t kAlignment = 4096;
constexpr Milliseconds kLongest{5000};

// Below: a checkpoint of a model of some gigabytes takes minutes.
constexpr double kSlowBytesPerSecond = 50e6;
constexpr std::uint64_t kLittleRoom = std::uint64_t{1} << 30;

struct FreeAligned {
  void operator()(std::byte* data) const { std::free(data); }
};

// Numbers that no file system can make shorter.
std::unique_ptr<std::byte, FreeAligned> random_piece() {
  std::unique_ptr<std::byte, FreeAligned> piece(
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, kPiece)));
  if (piece == nullptr) {
    throw MemoryError(concat("memory of ", kPiece, " bytes was asked for and refused"));
  }
  std::mt19937_64 random(1);
  for (std::size_t at = 0; at < kPiece; at += sizeof(std::uint64_t)) {
    const std::uint64_t value = random();
    std::memcpy(piece.get() + at, &value, sizeof(value));
  }
  return piece;
}

FileDescriptor open_nameless(const std::string& folder, bool* past_cache) {
  const std::string path = concat(folder, "/.trireme-doctor-", getpid());
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  *past_cache = true;
  FileDescriptor file(open(path.c_str(), kFlags | O_DIRECT, 0600));
  if (!file.valid() && errno == EINVAL) {
    unlink(path.c_str());  // some file systems make the file before they refuse
    *past_cache = false;
    file = FileDescriptor(open(path.c_str(), kFlags, 0600));
  }
  if (file.valid()) {
    unlink(path.c_str());
  }
  return file;
}

}  // namespace

DiskSpeed measure_disk(const std::string& folder, std::uint64_t bytes) {
  DiskSpeed disk;
  disk.folder = folder;
  const FileDescriptor file = open_nameless(folder, &disk.past_cache);
  if (!file.valid()) {
    disk.trouble = errno_text(errno);
    return disk;
  }
  struct statvfs room {};
  if (fstatvfs(file.get(), &room) == 0) {
    disk.free_bytes = static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize;
  }
  const auto piece = random_piece();
  const Deadline deadline(kLongest);
  std::uint64_t written = 0;
  while (written < bytes && !deadline.passed()) {
    const std::size_t now = std::min<std::uint64_t>(kPiece, bytes - written);
    const ssize_t got = write(file.get(), piece.get(), now);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == EINVAL && disk.past_cache) {
      disk.past_cache = false;  // opened, but not for writing past the cache after all
      fcntl(file.get(), F_SETFL, 0);
      continue;
    }
    if (got <= 0) {
      disk.trouble = got == 0 ? "nothing was written" : errno_text(errno);
      return disk;
    }
    written += static_cast<std::uint64_t>(got);
  }
  if (fsync(file.get()) != 0) {
    disk.trouble = errno_text(errno);
    return disk;
  }
  disk.bytes_per_second = static_cast<double>(written) / std::max(deadline.elapsed_seconds(), 1e-9);
  return disk;
}

Finding judge_disk(const DiskSpeed& disk) {
  if (!disk.trouble.empty()) {
    return problem(
        "disk",
        concat("\"", disk.folder, "\" cannot be written: ", disk.trouble),
        "create the folder, free up space in it or change its permissions; --folder names another");
  }
  Finding finding{"disk",
                  concat("\"{}\" writes {} MB/s{}, {} free",
                         {disk.folder,
                          number_text(disk.bytes_per_second / 1e6),
                          disk.past_cache ? "" : " (through the page cache)",
                          bytes_text(disk.free_bytes)}),
                  {{"bytes_per_second", disk.bytes_per_second},
                   {"free_bytes", static_cast<double>(disk.free_bytes)}}};
  if (disk.free_bytes < kLittleRoom) {
    finding.judge(Verdict::kWarning, "free up space: a run that cannot write its checkpoint ends");
  } else if (disk.bytes_per_second < kSlowBytesPerSecond) {
    finding.judge(Verdict::kWarning, "write runs to a faster disk, or save less often");
  }
  return finding;
}

}  // namespace trireme::detail
