#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include <sys/types.h>

#include "device/driver.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::device {

// Anonymous shared memory: a memfd. It has no name that another user could open, does not count
// against the size of /dev/shm, and vanishes with the last process that maps it, however that
// process ends. Sealed against resizing, so that no peer can turn a read of ours into a SIGBUS.

// Creates one of `bytes` with no pages yet. Throws MemoryError.
FileDescriptor create_memory(std::size_t bytes);

// Throws MemoryError when fewer than `bytes` are available to this process.
void check_available(std::size_t bytes);

// Gives [offset, offset + bytes) its pages now, on the calling thread's memory node, so that a
// machine without memory is an error here and not a SIGBUS later. Throws MemoryError.
void reserve_pages(int fd, std::size_t offset, std::size_t bytes);

// A mapping of all of `fd`. Ranks that are threads of one process share one mapping, which saves
// address space and lets the thread sanitizer see both sides of an exchange.
class Segment final : public Mapping {
 public:
  static std::shared_ptr<Segment> map(const FileDescriptor& fd, std::size_t bytes);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() override;

  std::byte* data() const override { return data_; }
  std::size_t size_bytes() const override { return bytes_; }
  const std::byte* read_only() override;

 private:
  using Inode = std::pair<dev_t, ino_t>;
  Segment(Inode inode, std::byte* data, std::size_t bytes)
      : inode_(inode), data_(data), bytes_(bytes) {}

  Inode inode_;
  std::byte* data_;
  std::size_t bytes_;
  std::once_flag read_only_once_;
  std::byte* read_only_ = nullptr;
};

std::size_t round_up(std::size_t value, std::size_t multiple);

}  // namespace trireme::device
