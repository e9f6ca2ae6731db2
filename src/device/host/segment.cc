#include "device/host/segment.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "trireme/core/error.h"
#include "trireme/core/machine.h"

namespace trireme::device {
namespace {

using detail::concat;
using detail::errno_text;

// The mappings of this process by the memory they show. Not a service with a life of its own: it
// only lets ranks in one process find the mapping that already exists.
struct LiveMappings {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Segment>> by_inode;  // guarded by mutex
};

LiveMappings& live_mappings() {
  static auto* mappings = new LiveMappings;  // never destroyed: a global World outlives statics
  return *mappings;
}

std::pair<dev_t, ino_t> inode_of(int fd) {
  struct stat status {};
  TRIREME_ASSERT(fstat(fd, &status) == 0, "fstat of a memfd failed: ", errno_text(errno));
  return {status.st_dev, status.st_ino};
}

// 0, or an errno value.
// A signal makes older kernels end the call and take back all that it has allocated. Under a
// profiler's timer a large one would then begin anew for ever: it is done in pieces, each of which
// is kept, and those become smaller until one fits between two signals.
int give_pages(int fd, std::size_t offset, std::size_t bytes) {
  constexpr std::size_t kLargestPiece = std::size_t{64} << 20;
  constexpr std::size_t kSmallestPiece = std::size_t{64} << 10;
  std::size_t piece = kLargestPiece;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t size = std::min(piece, bytes - done);
    if (fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(size)) == 0) {
      done += size;
    } else if (errno == EINTR) {
      piece = std::max(piece / 2, kSmallestPiece);
    } else {
      return errno;
    }
  }
  return 0;
}

std::string mebibytes(std::size_t bytes) {
  return concat((bytes + (1 << 20) - 1) >> 20, " MiB");
}

}  // namespace

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

FileDescriptor create_memory(std::size_t bytes) {
  // Growing a file past this limit would raise SIGXFSZ.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    throw MemoryError(concat(
        "shared memory of {} is above the file size limit of {} (ulimit -f): raise the limit",
        {mebibytes(bytes), mebibytes(limit.rlim_cur)}));
  }
  FileDescriptor fd(memfd_create("trireme", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    throw MemoryError(concat("memfd_create failed: ", errno_text(errno)));
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw MemoryError(concat(
        "shared memory of ", mebibytes(bytes), " could not be created: ", errno_text(errno)));
  }
  TRIREME_ASSERT(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
                 "sealing a memfd failed: ",
                 errno_text(errno));
  return fd;
}

void check_available(std::size_t bytes) {
  // In a control group with a limit the kernel would kill a process of ours rather than refuse.
  const std::uint64_t available = available_memory_bytes();
  if (bytes > available) {
    throw MemoryError(
        concat("shared memory of {} was requested, but only {} are available to this process: free "
               "memory, raise the container's limit, or ask for less",
               {mebibytes(bytes), mebibytes(available)}));
  }
}

void reserve_pages(int fd, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  check_available(bytes);
  if (const int error = give_pages(fd, offset, bytes); error != 0) {
    // What it got before that, so that nothing has changed.
    fallocate(fd,
              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
    throw MemoryError(
        concat("shared memory of {} could not be reserved: {}; {} are available to this process: "
               "free memory or ask for less",
               {mebibytes(bytes), errno_text(error), mebibytes(available_memory_bytes())}));
  }
}

std::shared_ptr<Segment> Segment::map(const FileDescriptor& fd, std::size_t bytes) {
  LiveMappings& live = live_mappings();
  const std::lock_guard lock(live.mutex);
  const auto key = inode_of(fd.get());
  if (auto existing = live.by_inode[key].lock()) {
    return existing;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    live.by_inode.erase(key);
    throw MemoryError(
        concat("shared memory of {} could not be mapped: {}; the limit on address space (ulimit "
               "-v) may be too low",
               {mebibytes(bytes), errno_text(error)}));
  }
  // Fewer page faults and TLB misses where the machine allows huge pages for shared memory.
  madvise(data, bytes, MADV_HUGEPAGE);
  std::shared_ptr<Segment> mapping(new Segment(key, static_cast<std::byte*>(data), bytes));
  live.by_inode[key] = mapping;
  return mapping;
}

Segment::~Segment() {
  LiveMappings& live = live_mappings();
  const std::lock_guard lock(live.mutex);
  const auto entry = live.by_inode.find(inode_);
  // Another thread may have mapped the same memory anew since the last handle went away.
  if (entry != live.by_inode.end() && entry->second.expired()) {
    live.by_inode.erase(entry);
  }
  munmap(data_, bytes_);
  if (read_only_ != nullptr) {
    munmap(read_only_, bytes_);
  }
}

const std::byte* Segment::read_only() {
  std::call_once(read_only_once_, [this] {
    // The descriptor is gone (a model has more units than a process may have files open), but a
    // mapping of shared pages can be asked for a second time.
    void* data = mremap(data_, 0, bytes_, MREMAP_MAYMOVE);
    if (data == MAP_FAILED || mprotect(data, bytes_, PROT_READ) != 0) {
      throw MemoryError(
          concat("shared memory of {} could not be mapped a second time: {}; the limit on address "
                 "space (ulimit -v) may be too low",
                 {mebibytes(bytes_), errno_text(errno)}));
    }
    madvise(data, bytes_, MADV_HUGEPAGE);
    read_only_ = static_cast<std::byte*>(data);
  });
  return read_only_;
}

}  // namespace trireme::device
